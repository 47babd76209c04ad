// One message on the page. A view shows its node as it is now; `update` shows it again after a
// change.

import { copy, h, icon, iconButton } from "./dom.js";
import { Rendered } from "./markdown.js";
import { chips } from "./tokens.js";
import { versions } from "./tree.js";

const ENDS = {
  length: "The answer reached the most tokens it may have.",
  stopped: "Stopped.",
  cut: "The answer was cut off.",
};

/**
 * A message. `acts` has `edit`, `again`, `show` and `result`; `isRunning` says whether the answer
 * still grows.
 */
export class View {
  constructor(conversation, node, acts) {
    Object.assign(this, { conversation, node, acts, isRunning: false, showsTokens: false });
    this.body = h("div", { class: "body" });
    this.foot = h("div", { class: "foot" });
    const who = node.role === "user" ? "You" : node.role === "tool" ? "Result" : (node.model ?? "Answer");
    const isText = node.mode === "completion";
    this.element = h("article", { class: `message ${node.role}${isText ? " text" : ""}`, "aria-label": who, "data-node": node.id }, h("h2", { class: "who" }, who), this.body, this.foot);
    this.text = null;
    this.update();
  }

  update() {
    if (this.node.role === "assistant" && this.node.mode !== "completion") this.updateAnswer();
    else this.updateText();
    this.drawFoot();
  }

  updateText() {
    const { node } = this;
    if (this.showsTokens && node.tokens?.length) return this.body.replaceChildren(chips(node.tokens));
    return this.body.replaceChildren(h("p", { class: "plain" }, node.content, this.isRunning ? h("span", { class: "caret", "aria-hidden": "true" }) : null), ...this.end());
  }

  updateAnswer() {
    const { node } = this;
    if (!this.text) {
      this.text = new Rendered();
      this.thought = new Rendered();
      this.thoughtLabel = h("summary");
      this.thoughtBox = h("details", { class: "thought" }, this.thoughtLabel, this.thought.element);
      this.place = h("div");
      this.rest = h("div");
      this.body.append(this.thoughtBox, this.place, this.rest);
    }
    this.thoughtBox.hidden = !node.thought;
    if (node.thought) {
      this.thoughtLabel.textContent = this.isRunning && !node.content ? "Thinking..." : "Thoughts";
      this.thought.show(node.thought);
    }
    const isBare = this.isRunning && !node.content && !node.calls?.length;
    if (this.showsTokens && node.tokens?.length) this.place.replaceChildren(chips(node.tokens));
    else {
      this.text.show(node.content);
      if (this.place.firstChild !== this.text.element) this.place.replaceChildren(this.text.element);
    }
    this.text.element.classList.toggle("growing", this.isRunning);
    this.rest.replaceChildren(...(isBare && !node.thought ? [h("p", { class: "waiting" }, "Waiting for the first token")] : []), ...this.calls(), ...this.end());
  }

  calls() {
    return (this.node.calls ?? []).map((call) => {
      let shown = call.arguments;
      try {
        shown = JSON.stringify(JSON.parse(call.arguments), null, 2);
      } catch {
        // Arguments that still stream, or that the model wrote wrong, are shown as they are.
      }
      const heading = h("div", { class: "bar" }, h("span", {}, "Calls ", h("code", {}, call.name)));
      return h("div", { class: "code call" }, heading, h("pre", { tabIndex: 0 }, h("code", {}, shown)), this.isRunning || this.hasResult(call) ? null : this.resultForm(call));
    });
  }

  hasResult(call) {
    return Object.values(this.conversation.nodes).some((node) => node.role === "tool" && node.callId === call.id);
  }

  /** A field for what the tool answers. */
  resultForm(call) {
    const field = h("textarea", { rows: 2, placeholder: "What the tool answers", "aria-label": `Result of ${call.name}` });
    const send = (event) => {
      event.preventDefault();
      this.acts.result(this.node, call, field.value);
    };
    return h("form", { class: "result", onsubmit: send }, field, h("button", {}, "Send result"));
  }

  end() {
    const { node } = this;
    if (this.isRunning || node.role !== "assistant") return [];
    const why = ENDS[node.end ?? "cut"];
    const isEmpty = !node.content && !node.calls?.length;
    return [why ? h("p", { class: "ending" }, why) : null, isEmpty && !why ? h("p", { class: "ending" }, "The answer is empty.") : null].filter(Boolean);
  }

  drawFoot() {
    const { node, acts } = this;
    if (this.isRunning) return this.foot.replaceChildren();
    const button = iconButton("copy", "Copy message", () => copy(node.content, button));
    const parts = [button];
    if (node.role !== "tool") parts.push(iconButton("edit", "Edit message", () => this.edit()));
    if (node.role === "assistant") parts.push(iconButton("again", "Answer again", () => acts.again(node)));
    if (node.tokens?.length) parts.push(this.tokensButton());
    const all = versions(this.conversation, node);
    if (all.length > 1) parts.push(this.switcher(all));
    if (node.stats) parts.push(h("span", { class: "stats", title: this.details() }, statsOf(node.stats)));
    return this.foot.replaceChildren(...parts);
  }

  tokensButton() {
    const toggle = () => {
      this.showsTokens = !this.showsTokens;
      this.update();
      this.foot.querySelector("[aria-pressed]").focus();
    };
    return iconButton("tokens", "Show token probabilities", toggle, { "aria-pressed": String(this.showsTokens) });
  }

  switcher(all) {
    const at = all.indexOf(this.node);
    const to = (step) => () => this.acts.show(all[at + step]);
    return h("span", { class: "versions", role: "group", "aria-label": "Versions" },
      iconButton("left", "Earlier version", to(-1), { disabled: at === 0 }),
      h("span", {}, `${at + 1}/${all.length}`),
      iconButton("right", "Later version", to(1), { disabled: at === all.length - 1 }));
  }

  details() {
    const { model, stats, at } = this.node;
    const prompt = stats.prompt === undefined ? "" : `\n${stats.prompt} tokens of prompt, ${stats.cached ?? 0} of them cached`;
    return `${model ?? ""}\n${new Date(at).toLocaleString()}${prompt}`;
  }

  /** A field in place of the text, until it is sent or left. */
  edit() {
    const { node } = this;
    const field = h("textarea", { rows: Math.min(16, node.content.split("\n").length + 1), value: node.content, "aria-label": "Edited message" });
    const isUser = node.role === "user";
    const leave = () => {
      this.text = null;
      this.body.replaceChildren();
      this.update();
      this.foot.querySelector("button")?.focus();
    };
    const done = (event) => {
      event?.preventDefault();
      this.acts.edit(node, field.value);
    };
    const keys = (event) => {
      if (event.key === "Escape") leave();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done(event);
    };
    const row = h("div", { class: "row end" }, h("button", { type: "button", onclick: leave }, "Cancel"), h("button", { class: "primary" }, isUser ? "Send" : "Save"));
    this.body.replaceChildren(h("form", { class: "edit", onsubmit: done, onkeydown: keys }, field, row));
    this.foot.replaceChildren();
    field.focus();
  }
}

/** Figures of an answer in words. */
export function statsOf({ tokens, rate, ttft }) {
  const parts = [];
  if (tokens !== undefined) parts.push(`${tokens} token${tokens === 1 ? "" : "s"}`);
  if (rate !== undefined) parts.push(`${rate >= 100 ? Math.round(rate) : rate.toFixed(1)} tokens/s`);
  if (ttft !== undefined) parts.push(`first after ${ttft >= 1000 ? `${(ttft / 1000).toFixed(1)} s` : `${Math.round(ttft)} ms`}`);
  return parts.join(" \u00b7 ");
}

/** What went wrong, with a button to try again; a server that asks to wait is waited for. */
export function problem(failure, again) {
  const button = h("button", { type: "button", onclick: again }, icon("again"), h("span", {}, "Try again"));
  const label = button.lastChild;
  let left = Math.ceil(failure.retryAfter);
  const tick = () => {
    button.disabled = left > 0;
    label.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
    if (left-- > 0 && (element.isConnected || element.isNew)) setTimeout(tick, 1000);
    element.isNew = false;
  };
  const titles = { away: "No connection", key: "An API key is needed", busy: "The server is busy", refused: "The server refused the request" };
  const where = failure.param ? h("p", { class: "param" }, "Field: ", h("code", {}, failure.param)) : null;
  const element = h("div", { class: "problem", role: "alert" }, h("strong", {}, titles[failure.kind] ?? "Something went wrong"), h("p", {}, failure.message), where, again ? button : null);
  element.isNew = true;
  tick();
  return element;
}
