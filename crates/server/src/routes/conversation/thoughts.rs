//! Turning thoughts on and off, whatever the model has for that.

use pelton_llm::{ChatOptions, Thoughts};
use serde_json::Value;

/// Sets the switches of the template. A thought that is off is also ended at once if the model begins
/// one all the same.
pub(crate) fn turn_thoughts(can: &Thoughts, is_on: bool, options: &mut ChatOptions) {
    let switches = can.switches.iter();
    let args = switches.map(|name| ((*name).to_owned(), Value::Bool(is_on)));
    options.template_args.extend(args);
    if !is_on && can.is_read {
        options.thinking_budget = Some(0);
    }
}
