// The tokens of an answer, coloured by their probability. Hover, or the arrow keys, show the other
// tokens that were likely.
//
// A token is `[text, log probability, [[text, log probability], ...]]`.

import { h } from "./dom.js";

const percent = (logprob) => {
  const share = Math.exp(logprob) * 100;
  return share >= 99.95 ? "100 %" : share < 0.01 ? "<0.01 %" : `${share >= 10 ? share.toFixed(1) : share.toFixed(2)} %`;
};

const visible = (text) => text.replaceAll(" ", "\u00b7").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5") || "(nothing)";

/** Classes `p0` (unlikely) to `p5` (nearly certain). */
function shade(logprob) {
  const share = Math.exp(logprob);
  return [0.05, 0.2, 0.4, 0.7, 0.95].filter((bound) => share >= bound).length;
}

/** Tokens of a chunk of `/v1/chat/completions`. */
export const ofChat = (logprobs) =>
  (logprobs?.content ?? []).map((token) => [token.token, token.logprob, (token.top_logprobs ?? []).map((other) => [other.token, other.logprob])]);

/** Tokens of a chunk of `/v1/completions`. */
export const ofCompletion = (logprobs) =>
  (logprobs?.tokens ?? []).map((token, i) => [token, logprobs.token_logprobs[i], Object.entries(logprobs.top_logprobs[i] ?? {}).sort((a, b) => b[1] - a[1])]);

/** The chips of an answer's tokens. */
export function chips(tokens) {
  let chosen = -1;
  const tip = h("div", { class: "tip", role: "status", hidden: true });
  const elements = tokens.map(([text, logprob], i) =>
    h("span", { class: `token p${shade(logprob)}`, onmouseenter: () => choose(i), onmouseleave: () => choose(-1) }, text));
  const row = h("div", {
    class: "tokens",
    tabIndex: 0,
    role: "group",
    "aria-label": `${tokens.length} tokens; arrow keys move between them`,
    onkeydown: move,
    onblur: () => choose(-1),
  }, ...elements);

  function choose(i) {
    elements[chosen]?.classList.remove("chosen");
    chosen = i;
    tip.hidden = i < 0;
    if (i < 0) return;
    elements[i].classList.add("chosen");
    tip.replaceChildren(...described(tokens[i]));
    place(elements[i]);
  }

  function place(element) {
    const [outer, inner] = [box.getBoundingClientRect(), element.getClientRects()[0] ?? element.getBoundingClientRect()];
    const left = Math.max(0, Math.min(inner.left - outer.left, outer.width - tip.offsetWidth));
    tip.style.setProperty("left", `${left}px`);
    tip.style.setProperty("top", `${inner.bottom - outer.top + 6}px`);
  }

  function move(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -tokens.length, End: tokens.length }[event.key];
    if (event.key === "Escape") return choose(-1);
    if (!step || tokens.length === 0) return undefined;
    event.preventDefault();
    choose(Math.max(0, Math.min(tokens.length - 1, (chosen < 0 && step > 0 ? -1 : chosen) + step)));
    elements[chosen].scrollIntoView({ block: "nearest" });
    return undefined;
  }

  const box = h("div", { class: "token-box" }, row, tip);
  return box;
}

function described([text, logprob, others]) {
  const all = others.some(([other]) => other === text) ? others : [[text, logprob], ...others];
  return all.slice(0, 12).map(([other, value]) => {
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", String(Math.exp(value)));
    const name = h("span", { class: "name" }, visible(other));
    return h("div", { class: other === text ? "line own" : "line" }, name, bar, h("span", { class: "value" }, percent(value)));
  });
}
