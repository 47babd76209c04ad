// Colours of code: comments, strings, numbers and common keywords, the same for all languages but
// their comments. It colours what is likely, and never changes a letter.

import { h } from "./dom.js";

const MOST_LETTERS = 40000;
const KEYWORDS = new Set(
  (
    "abstract and as assert async await begin bool boolean break case catch char class const continue crate def default defer del do double elif else end enum " +
    "except export extends extern false finally float fn for from func function global go goto if impl implements import in include int interface is lambda let long " +
    "loop macro match mod module mut namespace new nil None nonlocal not null nullptr of operator or override package pass private protected pub public raise record ref " +
    "require return Self self short signed sizeof static str string struct super switch template then this throw throws trait True False true try type typedef typeof " +
    "undefined union unless unsafe unsigned until use using val var virtual void volatile when where while with yield select insert update delete create table join group order by having limit"
  ).split(" "),
);
const HASH = ["py", "python", "sh", "bash", "zsh", "shell", "console", "yaml", "yml", "toml", "rb", "ruby", "perl", "r", "make", "makefile", "dockerfile", "ini", "conf", "nix", "julia", "elixir"];
const DASH = ["sql", "lua", "haskell", "hs", "ada", "elm"];
const NONE = ["", "text", "txt", "plain", "markdown", "md", "diff", "csv", "output"];

const STRINGS = String.raw`"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\x60(?:\\.|[^\x60\\])*\x60`;
const NUMBERS = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*`;
const rule = (comments) => new RegExp(`(?<comment>${comments})|(?<string>${STRINGS})|(?<number>${NUMBERS})|(?<word>[A-Za-z_$][\\w$]*)`, "g");
const RULES = {
  hash: rule("#[^\\n]*"),
  dash: rule("--[^\\n]*"),
  slash: rule("//[^\\n]*|/\\*[^]*?\\*/|<!--[^]*?-->"),
};

/** The nodes of a text of code. */
export function highlight(text, language) {
  const name = language.toLowerCase();
  if (NONE.includes(name) || text.length > MOST_LETTERS) return [text];
  const rules = HASH.includes(name) ? RULES.hash : DASH.includes(name) ? RULES.dash : RULES.slash;
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(rules)) {
    const [kind] = Object.entries(match.groups).find(([, value]) => value !== undefined);
    if (kind === "word" && !KEYWORDS.has(match[0])) continue;
    if (match.index > at) nodes.push(text.slice(at, match.index));
    nodes.push(h("span", { class: `hl-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  nodes.push(text.slice(at));
  return nodes;
}
