// Markdown within a paragraph: code, emphasis, links, breaks. Makes nodes, never HTML. Time is
// linear in the text: a mark whose end is missing once is not searched again.

import { h } from "./dom.js";

/** Longest paragraph that is read as Markdown; a longer one is plain text. */
const MOST_LETTERS = 50000;
const MARKS = [["***", ["strong", "em"]], ["**", ["strong"]], ["__", ["strong"]], ["~~", ["del"]], ["*", ["em"]], ["_", ["em"]]];
const isWord = (letter) => letter !== undefined && /[\p{L}\p{N}_]/u.test(letter);
const isSpace = (letter) => letter === undefined || /\s/.test(letter);

/** The nodes of a paragraph's text. */
export function inline(text, depth = 0) {
  if (text.length > MOST_LETTERS || depth > 8) return [text];
  const nodes = [];
  const missing = new Set();
  let plain = "";
  let at = 0;
  const put = (node, end) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
    at = end;
  };
  while (at < text.length) {
    const found = piece(text, at, missing, depth);
    if (found) put(found.node, found.end);
    else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else plain += text[at++];
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** The element that begins at a place, and where it ends. */
function piece(text, at, missing, depth) {
  switch (text[at]) {
    case "`":
      return code(text, at, missing);
    case "*":
    case "_":
    case "~":
      return emphasis(text, at, missing, depth);
    case "[":
      return link(text, at, at, depth);
    case "!":
      // A picture would be fetched from elsewhere, so it becomes a link.
      return text[at + 1] === "[" ? link(text, at + 1, at, depth) : null;
    case "<":
    case "h":
      return address(text, at);
    case "\n":
      return { node: h("br"), end: at + 1 };
    default:
      return null;
  }
}

function find(text, what, from, missing) {
  if (missing.has(what)) return -1;
  const end = text.indexOf(what, from);
  if (end < 0) missing.add(what);
  return end;
}

function code(text, at, missing) {
  const marks = /^`+/.exec(text.slice(at, at + 8))[0];
  const end = find(text, marks, at + marks.length, missing);
  if (end < 0) return null;
  const inner = text.slice(at + marks.length, end).replace(/^ (.*\S.*) $/s, "$1");
  return { node: h("code", {}, inner), end: end + marks.length };
}

function emphasis(text, at, missing, depth) {
  for (const [mark, tags] of MARKS) {
    if (!text.startsWith(mark, at) || isSpace(text[at + mark.length])) continue;
    // Underscores within a word are part of it.
    if (mark[0] === "_" && isWord(text[at - 1])) continue;
    let end = find(text, mark, at + mark.length + 1, missing);
    while (end >= 0 && !isEnd(text, mark, end)) end = find(text, mark, end + 1, missing);
    if (end < 0) continue;
    let node = null;
    const inner = inline(text.slice(at + mark.length, end), depth + 1);
    for (const tag of [...tags].reverse()) node = h(tag, {}, ...(node ? [node] : inner));
    return { node, end: end + mark.length };
  }
  return null;
}

/** Whether a mark ends an emphasis: it follows a letter, and is no part of a longer mark. */
function isEnd(text, mark, end) {
  const [before, after] = [text[end - 1], text[end + mark.length]];
  if (isSpace(before)) return false;
  if (mark.length === 1 && (before === mark || after === mark)) return false;
  return mark[0] !== "_" || !isWord(after);
}

/** `[text](address)`; `from` is where the element begins. */
function link(text, bracket, from, depth) {
  const found = /^([^\]]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s[^)]*)?\)/.exec(text.slice(bracket + 1, bracket + 2000));
  if (!found) return null;
  const [whole, label, target] = found;
  const inner = bracket === from ? inline(label, depth + 1) : [label || target];
  return { node: anchor(target, inner), end: bracket + 1 + whole.length };
}

function address(text, at) {
  const rest = text.slice(at, at + 2000);
  const bracketed = /^<(https?:\/\/[^\s<>]+)>/.exec(rest);
  if (bracketed) return { node: anchor(bracketed[1], [bracketed[1]]), end: at + bracketed[0].length };
  if (isWord(text[at - 1])) return null;
  const bare = /^https?:\/\/[^\s<>"'`]+[^\s<>"'`.,;:!?)\]}*_]/.exec(rest);
  return bare && { node: anchor(bare[0], [bare[0]]), end: at + bare[0].length };
}

/** A link, if its address is one of the web or of mail; else its text. */
function anchor(target, inner) {
  let url = null;
  try {
    url = new URL(target);
  } catch {
    // Addresses within this server are not for a model to choose.
  }
  const isSafe = url && ["http:", "https:", "mailto:"].includes(url.protocol);
  if (!isSafe) return h("span", {}, ...inner);
  return h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow", title: url.href }, ...inner);
}
