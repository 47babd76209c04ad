//! Formats are known by the marks of chat templates.

use std::collections::BTreeSet;

use pelton_parse::{
    REASONING_FORMATS, TOOL_FORMATS, reasoning_format, reasoning_format_of_template, tool_format,
    tool_format_of_template,
};

/// The text that the templates of these models write around calls, and the formats of calls and
/// thoughts.
const MARKS: &[(&str, &str, &str, &str)] = &[
    (
        "Qwen 2.5",
        "\nFor each function call, return a json object with function name and arguments within \
         <tool_call></tool_call> XML tags:\n<tool_call>\n{\\\"name\\\": <function-name>",
        "hermes",
        "",
    ),
    (
        "Qwen 3",
        "{{- '\\n<tool_call>\\n{\"name\": \"' }} {%- if '</think>' in content %} '<think>\\n\\n</think>\\n\\n'",
        "hermes",
        "deepseek_r1",
    ),
    ("Granite 4", "<|start_of_role|> within <tool_call></tool_call> XML tags", "hermes", ""),
    (
        "Llama 3.1",
        "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n{{- '{\"name\": \"' + \
         tool_call.name + '\", ' }}\n{{- '\"parameters\": ' }} {{- \"<|python_tag|>\" + \
         tool_call.name + \".call(\" }}",
        "llama3_json",
        "",
    ),
    (
        "Llama 3.2, small",
        "<|start_header_id|> You should only return the function call in tools call sections.\n\
         [func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]",
        "pythonic",
        "",
    ),
    (
        "Llama 4",
        "<|header_start|> Use exact format: [func_name1(param1=value1, param2=value2), func_name2(...)]",
        "pythonic",
        "",
    ),
    (
        "Mistral 7B v0.3",
        "{{- \"[TOOL_CALLS] [\" }} {{- ', \"id\": \"' + tool_call.id + '\"}' }}",
        "mistral",
        "",
    ),
    (
        "Mistral Small 3.2",
        "{{- \"[TOOL_CALLS]\" + tool_call.function.name + \"[CALL_ID]\" + id + \"[ARGS]\" }}",
        "mistral_args",
        "",
    ),
    ("Magistral", "[THINK]Your thoughts[/THINK] [TOOL_CALLS]f[ARGS]", "mistral_args", "mistral"),
    (
        "DeepSeek V3",
        "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + \
         tool['function']['name'] + '\\n' + '```json' + '\\n'",
        "deepseek_v3",
        "",
    ),
    (
        "DeepSeek V3.1",
        "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+ tool['function']['name'] + \
         '<｜tool▁sep｜>' + tool['function']['arguments'] {{'<｜Assistant｜></think>'}}",
        "deepseek_v31",
        "deepseek_r1",
    ),
    (
        "GLM 4.5",
        "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}\
         </arg_value> {{ '\\n<think></think>' }}",
        "glm45",
        "deepseek_r1",
    ),
    (
        "gpt-oss",
        "{{- \"<|start|>assistant<|channel|>commentary to=functions.\" }} <|constrain|>json",
        "openai",
        "openai_gptoss",
    ),
    (
        "Granite 3.3",
        "respond only with <|tool_call|> followed by a JSON list of tools. Here is my thought \
         process: ... Here is my response:",
        "granite",
        "granite",
    ),
    (
        "Granite 20B",
        "please output \\\"<function_call> {\\\"name\\\": \\\"no_function\\\"",
        "granite-20b-fc",
        "",
    ),
    (
        "Phi-4-mini, vLLM's",
        "formatted as functools[{\"name\": [function name], \"arguments\": [..]}, ...]",
        "phi4_mini_json",
        "",
    ),
    (
        "Phi-4-mini",
        "{{ '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}",
        "phi4_mini",
        "",
    ),
    (
        "Kimi K2",
        "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
        "kimi_k2",
        "",
    ),
    (
        "Qwen3-Coder",
        "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1",
        "qwen3_coder",
        "",
    ),
    ("Command R7B", "<|START_THINKING|> and <|END_THINKING|>", "", "cohere_command3"),
    ("Seed-OSS", "<seed:think>", "", "seed_oss"),
    ("Kimi VL", "◁think▷", "", "kimi"),
    ("Gemma 2", "<start_of_turn>model\n", "", ""),
    ("ChatML", "<|im_start|>assistant\n", "", ""),
];

#[test]
fn the_marks_of_templates_choose_formats() {
    let mut found = BTreeSet::new();
    for (model, template, calls, thoughts) in MARKS {
        let format = tool_format_of_template(template).map_or("", |format| format.name());
        assert_eq!(format, *calls, "{model}");
        found.insert(format);
        let format = reasoning_format_of_template(template).map_or("", |format| format.name());
        assert_eq!(format, *thoughts, "{model}");
        found.insert(format);
    }
    for name in
        TOOL_FORMATS.iter().map(|f| f.name()).chain(REASONING_FORMATS.iter().map(|f| f.name()))
    {
        assert!(found.contains(name), "{name} has no template here");
    }
}

/// The names in the first two columns of a table of the manual.
fn documented(heading: &str) -> Vec<Vec<String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tools.md");
    let page = std::fs::read_to_string(path).expect("a page");
    let (_, section) = page.split_once(heading).expect("a section");
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let names = |row: &str| {
        let names = row.split('|').skip(1).take(2).collect::<String>();
        names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    rows.take_while(|line| line.starts_with('|')).map(names).collect()
}

#[test]
fn the_manual_has_every_name() {
    let names = |name: &str, aliases: &[&str]| -> Vec<String> {
        std::iter::once(name).chain(aliases.iter().copied()).map(str::to_owned).collect()
    };
    let mut known: Vec<_> = TOOL_FORMATS.iter().map(|f| names(f.name(), f.aliases())).collect();
    let mut told = documented("## Formats of tool calls");
    known.sort();
    told.sort();
    assert_eq!(told, known);
    let mut known: Vec<_> =
        REASONING_FORMATS.iter().map(|f| names(f.name(), f.aliases())).collect();
    let mut told = documented("## Thoughts");
    known.sort();
    told.sort();
    assert_eq!(told, known);
}

#[test]
fn every_name_means_one_format() {
    let mut names = BTreeSet::new();
    for format in TOOL_FORMATS {
        for name in format.aliases().iter().chain([&format.name()]) {
            assert!(names.insert(name.to_lowercase()), "{name}");
            for spelled in [name.to_uppercase(), name.replace('_', "-")] {
                let meant = tool_format(&spelled).expect("a format");
                assert_eq!(meant.name(), format.name(), "{spelled}");
            }
        }
    }
    assert!(tool_format("").is_none() && tool_format("herme").is_none());
    for format in REASONING_FORMATS {
        for name in format.aliases().iter().chain([&format.name()]) {
            let meant = reasoning_format(name).expect("a format");
            assert_eq!(meant.name(), format.name(), "{name}");
        }
    }
}

#[test]
fn a_prompt_ends_within_a_thought_or_not() {
    let table = [
        ("deepseek_r1", "<|im_start|>assistant\n<think>\n", true),
        ("deepseek_r1", "<|im_start|>assistant\n<think>\n\n</think>\n\n", false),
        ("deepseek_r1", "What is <think>?<|im_end|>\n<|im_start|>assistant\n", false),
        ("deepseek_r1", "", false),
        ("openai_gptoss", "<|start|>assistant", false),
        ("openai_gptoss", "<|start|>assistant<|channel|>analysis<|message|>", true),
        ("mistral", "[/INST][THINK]", true),
        ("kimi", "◁think▷", true),
    ];
    for (name, tail, expected) in table {
        let format = reasoning_format(name).expect("a format");
        assert_eq!(format.opens_in(tail), expected, "{name} {tail:?}");
    }
}

/// The text that ends a thought, and the text that begins one, are what the reader takes them for.
#[test]
fn a_thought_that_is_closed_is_over() {
    for format in REASONING_FORMATS {
        assert!(format.closes().iter().any(|close| format.close().contains(close)), "{format:?}");
        let open = format.opens()[0];
        let options = pelton_parse::ReaderOptions {
            reasoning: Some(format),
            ..pelton_parse::ReaderOptions::default()
        };
        let channel = if format.name() == "openai_gptoss" {
            "<|start|>assistant<|channel|>final<|message|>"
        } else {
            ""
        };
        let text = format!("{open}Hm, so{}{channel}Yes", format.close());
        let answer = pelton_parse::read(options, &text);
        assert_eq!(
            (answer.reasoning.as_str(), answer.content.as_str()),
            ("Hm, so", "Yes"),
            "{text}"
        );
    }
}
