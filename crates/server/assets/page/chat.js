// The chat: the shown conversation, the answer that is streaming, and what the buttons do.

import * as api from "./api.js";
import { announce, byId, h } from "./dom.js";
import { View, problem } from "./message.js";
import { BadSetting } from "./settings.js";
import * as store from "./store.js";
import { ofChat, ofCompletion } from "./tokens.js";
import { add, newConversation, path, show } from "./tree.js";

/** Milliseconds between two savings of an answer that streams. */
const SAVE_EVERY = 2000;
/** Shortest time of a stream by which its speed is measured. */
const LEAST_MS = 30;

export class Chat {
  /** `host` has `settings`, `sidebar`, `model()` and `needKey()`. */
  constructor(host) {
    Object.assign(this, { host, conversation: newConversation(), views: new Map(), running: null });
    this.log = byId("log");
    this.draft = byId("draft");
    this.acts = {
      edit: (node, text) => this.edit(node, text),
      again: (node) => this.answer(node.parent),
      show: (node) => this.showVersion(node),
      result: (node, call, text) => this.result(node, call, text),
    };
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => this.stop());
    this.draft.addEventListener("input", () => this.fit());
    this.draft.addEventListener("keydown", (event) => this.typed(event));
    byId("view-chat").addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running) this.stop();
    });
    this.draw();
  }

  typed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    // On a phone the Enter key begins a new line; a button sends.
    if (matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    this.send();
  }

  fit() {
    this.draft.style.setProperty("height", "auto");
    this.draft.style.setProperty("height", `${Math.min(this.draft.scrollHeight + 2, innerHeight * 0.4)}px`);
  }

  /** Shows a conversation, or a new one. */
  async open(conversation) {
    this.conversation = this.running?.conversation.id === conversation?.id && conversation ? this.running.conversation : (conversation ?? newConversation());
    this.draw();
    this.scroll(true);
    await this.host.sidebar.refresh(this.conversation);
    this.draft.focus();
  }

  draw() {
    const nodes = path(this.conversation);
    this.views.clear();
    const elements = nodes.map((node) => this.viewOf(node).element);
    this.log.replaceChildren(...(elements.length ? elements : [this.welcome()]));
    this.drawState();
  }

  viewOf(node) {
    const view = new View(this.conversation, node, this.acts);
    this.views.set(node.id, view);
    if (this.running?.node === node) {
      view.isRunning = true;
      view.update();
    }
    return view;
  }

  welcome() {
    const model = this.host.model();
    const isCompletion = this.host.settings.isCompletion(model);
    const asks = isCompletion
      ? ["Once upon a time", "The old house by the sea", "The king looked at the door and"]
      : ["Tell me a story about the sea.", "Write a haiku about a water wheel.", "What is a Pelton turbine?"];
    const pick = (text) => () => {
      this.draft.value = text;
      this.fit();
      this.draft.focus();
    };
    return h("div", { class: "welcome" },
      h("img", { src: "page/icon.svg", alt: "", width: 56, height: 56 }),
      h("h1", {}, isCompletion ? "Begin a text" : "Ask the model"),
      h("p", {}, model ? `${model.id} answers on this server. Conversations stay in this browser.` : "This server serves no model that writes text."),
      h("div", { class: "asks" }, asks.map((text) => h("button", { type: "button", onclick: pick(text) }, text))));
  }

  drawState() {
    const isBusy = this.running !== null;
    byId("send").hidden = isBusy;
    byId("stop").hidden = !isBusy;
    byId("send").disabled = !this.host.model();
    const isCompletion = this.host.settings.isCompletion(this.host.model());
    this.draft.placeholder = isCompletion ? "Text to continue" : "Message";
    byId("log").setAttribute("aria-busy", String(isBusy));
  }

  async send() {
    if (this.running || !this.host.model()) return;
    const text = this.draft.value;
    const nodes = path(this.conversation);
    const isCompletion = this.host.settings.isCompletion(this.host.model());
    if (!text.trim()) {
      // A text goes on without a new word.
      if (isCompletion && nodes.length > 0) await this.answer(this.conversation.leaf);
      return;
    }
    this.draft.value = "";
    this.fit();
    const message = { role: "user", content: text };
    if (isCompletion) message.mode = "completion";
    const node = add(this.conversation, this.conversation.leaf, message);
    await this.answer(node.id);
  }

  async edit(node, text) {
    if (this.running) return;
    const { role, mode, model, callId } = node;
    const changed = add(this.conversation, node.parent, { role, content: text, mode, model, callId, end: role === "assistant" ? "edited" : undefined });
    if (role === "user") return this.answer(changed.id);
    this.draw();
    return this.keep();
  }

  async result(node, call, text) {
    if (this.running) return;
    const last = path(this.conversation).at(-1);
    const parent = last.role === "tool" ? last.id : node.id;
    const added = add(this.conversation, parent, { role: "tool", content: text, callId: call.id });
    const results = path(this.conversation).filter((one) => one.role === "tool").map((one) => one.callId);
    if (node.calls.every(({ id }) => results.includes(id))) return this.answer(added.id);
    this.draw();
    return this.keep();
  }

  showVersion(node) {
    if (this.running) return;
    show(this.conversation, node);
    this.draw();
    const view = this.views.get(node.id);
    view?.element.scrollIntoView({ block: "nearest" });
    view?.foot.querySelector(".versions button:not(:disabled)")?.focus();
    this.keep();
  }

  stop() {
    this.running?.abort.abort();
  }

  /** Asks for an answer to the message `parent`. */
  async answer(parent) {
    const model = this.host.model();
    if (this.running || !model) return;
    const { conversation } = this;
    conversation.leaf = parent;
    let request;
    try {
      request = this.host.settings.request(model, path(conversation));
    } catch (error) {
      this.draw();
      this.fail(new api.Failure("refused", error.message), parent);
      if (error instanceof BadSetting) this.host.showSetting(error.name);
      return;
    }
    const mode = request.path.endsWith("/chat/completions") ? undefined : "completion";
    const node = add(conversation, parent, { role: "assistant", content: "", model: model.id, mode });
    this.running = { conversation, node, abort: new AbortController(), saved: 0, sent: performance.now() };
    this.draw();
    this.scroll(true);
    await this.keep();
    announce("The answer begins");
    let failed = null;
    try {
      await this.receive(request);
      announce("The answer is complete");
    } catch (error) {
      if (error.name === "AbortError") {
        node.end = "stopped";
        announce("Stopped");
      } else {
        failed = error instanceof api.Failure ? error : new api.Failure("refused", String(error.message ?? error));
        node.end = "cut";
      }
    }
    await this.finish(node, failed, parent);
  }

  async finish(node, failed, parent) {
    const { conversation } = this.running;
    this.running = null;
    const isEmpty = !node.content && !node.thought && !node.calls?.length;
    if (failed && isEmpty) {
      delete conversation.nodes[node.id];
      conversation.leaf = parent;
    }
    await store.save(conversation).catch(() => {});
    if (conversation === this.conversation) {
      const wasAtEnd = this.isAtEnd();
      this.draw();
      if (failed) this.fail(failed, parent);
      if (wasAtEnd) this.scroll(true);
    }
    await this.host.sidebar.refresh();
  }

  /** Shows what went wrong below the conversation. */
  async fail(failure, parent) {
    if (failure.kind === "key") {
      if (await this.host.needKey(failure)) return this.answer(parent);
    }
    if (failure.kind === "away") this.host.isAway();
    this.log.append(problem(failure, () => this.answer(parent)));
    return this.scroll(true);
  }

  /** Reads the stream of an answer into the node. */
  async receive({ path: route, body }) {
    const { node, abort, sent } = this.running;
    const response = await api.call(route, { body, signal: abort.signal });
    let [first, last, pieces] = [null, null, 0];
    for await (const chunk of api.events(response)) {
      if (chunk.error) throw api.failureOf(chunk.error, response.status === 200 ? 500 : response.status);
      const choice = chunk.choices?.[0];
      if (choice && take(node, choice)) {
        last = performance.now();
        first ??= last;
        pieces++;
      }
      if (choice?.finish_reason) node.end = choice.finish_reason;
      const { usage } = chunk;
      if (first !== null) node.stats = stats(usage, pieces, sent, first, last);
      this.refresh();
    }
    node.end ??= "cut";
  }

  /** Shows the answer as it is, at most once per frame. */
  refresh() {
    const { running } = this;
    if (performance.now() - running.saved > SAVE_EVERY) {
      running.saved = performance.now();
      store.save(running.conversation).catch(() => {});
    }
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (!this.running || this.running.conversation !== this.conversation) return;
      const wasAtEnd = this.isAtEnd();
      this.views.get(this.running.node.id)?.update();
      if (wasAtEnd) this.scroll(true);
    });
  }

  isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 80;
  }

  scroll(toEnd) {
    if (toEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  async keep() {
    await store.save(this.conversation).catch(() => {});
    await this.host.sidebar.refresh(this.conversation);
  }
}

/** Adds a piece of an answer to its node; whether it had any text. */
function take(node, choice) {
  const delta = choice.delta ?? { content: choice.text };
  const tokens = choice.delta ? ofChat(choice.logprobs) : ofCompletion(choice.logprobs);
  if (tokens.length) (node.tokens ??= []).push(...tokens);
  const thought = delta.reasoning ?? delta.reasoning_content;
  if (thought) node.thought = (node.thought ?? "") + thought;
  if (delta.content) node.content += delta.content;
  for (const call of delta.tool_calls ?? []) {
    const calls = (node.calls ??= []);
    const known = (calls[call.index] ??= { id: "", name: "", arguments: "" });
    if (call.id) known.id = call.id;
    known.name += call.function?.name ?? "";
    known.arguments += call.function?.arguments ?? "";
  }
  return Boolean(thought || delta.content || delta.tool_calls?.length);
}

/** Figures of an answer; without usage, as in an answer that was stopped, pieces count as tokens. */
function stats(usage, pieces, sent, first, last) {
  const tokens = usage?.completion_tokens ?? pieces;
  const all = { tokens, ttft: first - sent };
  // Pieces that came all at once say nothing about the time between them.
  const took = last - first >= LEAST_MS ? last - first : last - sent;
  if (tokens > 1 && took > 0) all.rate = ((tokens - 1) * 1000) / took;
  if (usage) Object.assign(all, { prompt: usage.prompt_tokens, cached: usage.prompt_tokens_details?.cached_tokens });
  return all;
}
