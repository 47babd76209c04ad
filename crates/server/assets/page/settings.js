// Settings of requests: their form beside the chat, and the body that they make.

import { h } from "./dom.js";
import { messages } from "./tree.js";

const PLACE = "pelton-settings";
const DEFAULTS = {
  mode: "auto", system: "", temperature: "", top_p: "", top_k: "", max_tokens: "", seed: "", stop: "",
  logprobs: false, usesSchema: false, schema: "", usesTools: false, tools: "",
};
/** Length of a completion where none is set: the server's own default is 16 tokens. */
const COMPLETION_TOKENS = 256;
const TOP_LOGPROBS = 5;

const NUMBERS = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest token", step: "0.1", min: 0, max: 2 },
  { name: "top_p", label: "Top P", hint: "Least share of probability that is kept", step: "0.05", min: 0, max: 1 },
  { name: "top_k", label: "Top K", hint: "Most tokens to choose from; 0 is all", step: "1", min: 0 },
  { name: "max_tokens", label: "Most tokens", hint: "Length of an answer", step: "1", min: 1 },
  { name: "seed", label: "Seed", hint: "The same seed gives the same answer", step: "1" },
];

const EXAMPLE_SCHEMA = '{\n  "type": "object",\n  "properties": {"name": {"type": "string"}},\n  "required": ["name"]\n}';
const EXAMPLE_TOOLS = '[{"type": "function", "function": {\n  "name": "weather",\n  "parameters": {"type": "object",\n    "properties": {"city": {"type": "string"}}}\n}}]';

/** A setting that cannot be sent; `name` is its field. */
export class BadSetting extends Error {
  constructor(name, message) {
    super(message);
    this.name = name;
  }
}

export class Settings {
  constructor(element) {
    this.values = { ...DEFAULTS };
    try {
      const kept = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
      for (const name of Object.keys(DEFAULTS)) if (typeof kept[name] === typeof DEFAULTS[name]) this.values[name] = kept[name];
    } catch {
      // Without storage every visit begins with the defaults.
    }
    this.element = element;
    this.fields = {};
    this.draw();
  }

  draw() {
    this.element.replaceChildren(
      h("h2", {}, "Settings"),
      this.select("mode", "Mode", [["auto", "As the model needs"], ["chat", "Chat"], ["completion", "Completion: continue a text"]]),
      this.area("system", "System prompt", 3, "How the model is to behave"),
      h("div", { class: "pairs" }, NUMBERS.map((field) => this.number(field))),
      this.area("stop", "Stop texts", 2, "One per line; an answer ends before them"),
      this.check("logprobs", "Token probabilities", "Colours the tokens of answers, and shows on hover what else was likely"),
      this.check("usesSchema", "Answer as JSON of a schema", "", this.area("schema", "JSON schema", 8, EXAMPLE_SCHEMA, "code")),
      this.check("usesTools", "Tools", "", this.area("tools", "Tools as JSON", 8, EXAMPLE_TOOLS, "code")),
      h("button", { type: "button", onclick: () => this.reset() }, "Back to the defaults"),
      h("button", { type: "button", onclick: () => this.onkey?.() }, "API key"),
    );
  }

  reset() {
    this.values = { ...DEFAULTS };
    this.keep();
    this.draw();
    this.element.querySelector("select").focus();
  }

  keep() {
    try {
      localStorage.setItem(PLACE, JSON.stringify(this.values));
    } catch {
      // See the constructor.
    }
    this.onchange?.();
  }

  set(name, value) {
    this.values[name] = value;
    this.fields[name]?.removeAttribute("aria-invalid");
    this.keep();
  }

  /** Points at the field of a bad setting. */
  point(name) {
    const field = this.fields[name];
    if (!field) return;
    field.setAttribute("aria-invalid", "true");
    field.focus();
  }

  field(name, field, label, hint) {
    field.id = `set-${name}`;
    this.fields[name] = field;
    const note = hint ? h("small", { id: `set-${name}-hint` }, hint) : null;
    if (note) field.setAttribute("aria-describedby", note.id);
    return h("div", { class: "setting" }, h("label", { for: field.id }, label), field, note);
  }

  number({ name, label, hint, ...rest }) {
    const field = h("input", { type: "number", inputMode: "decimal", placeholder: "default", value: this.values[name], oninput: () => this.set(name, field.value), ...rest });
    return this.field(name, field, label, hint);
  }

  area(name, label, rows, placeholder, kind = "") {
    const field = h("textarea", { rows, placeholder, class: kind, value: this.values[name], spellcheck: !kind, oninput: () => this.set(name, field.value) });
    return this.field(name, field, label);
  }

  select(name, label, choices) {
    const options = choices.map(([value, text]) => h("option", { value, selected: value === this.values[name] }, text));
    const field = h("select", { onchange: () => this.set(name, field.value) }, options);
    return this.field(name, field, label);
  }

  check(name, label, hint, more = null) {
    const show = () => more && (more.hidden = !this.values[name]);
    const field = h("input", { type: "checkbox", id: `set-${name}`, checked: this.values[name], onchange: () => (this.set(name, field.checked), show()) });
    this.fields[name] = field;
    show();
    const note = hint ? h("small", {}, hint) : null;
    return h("div", { class: "setting" }, h("label", { class: "check" }, field, h("span", {}, label)), note, more);
  }

  /** Whether the next request continues a text. */
  isCompletion(model) {
    return this.values.mode === "completion" || (this.values.mode === "auto" && model?.chats === false);
  }

  /** Route and body of a request for an answer to these messages. */
  request(model, nodes) {
    const isCompletion = this.isCompletion(model);
    const body = { model: model.id, stream: true, stream_options: { include_usage: true } };
    for (const { name } of NUMBERS) {
      const text = String(this.values[name]).trim();
      if (text === "") continue;
      const value = Number(text);
      if (!Number.isFinite(value)) throw new BadSetting(name, `The setting ${name} must be a number, got ${text}.`);
      body[name] = value;
    }
    const stop = this.values.stop.split("\n").filter(Boolean);
    if (stop.length > 0) body.stop = stop;
    if (this.values.usesSchema && this.values.schema.trim()) {
      body.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed("schema", this.values.schema) } };
    }
    if (isCompletion) return { path: "v1/completions", body: this.completion(body, nodes) };
    if (this.values.logprobs) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
    if (this.values.usesTools && this.values.tools.trim()) body.tools = parsed("tools", this.values.tools);
    body.messages = messages(nodes, this.values.system);
    return { path: "v1/chat/completions", body };
  }

  completion(body, nodes) {
    if (this.values.logprobs) body.logprobs = TOP_LOGPROBS;
    body.max_tokens ??= COMPLETION_TOKENS;
    body.prompt = this.values.system + nodes.map((node) => node.content).join("");
    return body;
  }
}

function parsed(name, text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new BadSetting(name, `The setting ${name} is no JSON: ${error.message}`);
  }
}
