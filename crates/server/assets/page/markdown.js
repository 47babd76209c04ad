// Markdown of answers: headings, paragraphs, lists, quotes, tables, code. While an answer streams,
// only its last blocks are made anew, so that a selection and the place of reading stay.

import { copy, h, iconButton } from "./dom.js";
import { highlight } from "./highlight.js";
import { inline } from "./inline.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MOST_DEPTH = 12;
/** A wider table is shown as its text. */
const MOST_COLUMNS = 200;

/** A place that shows Markdown and can be given a longer text again and again. */
export class Rendered {
  constructor() {
    this.element = h("div", { class: "markdown" });
    this.sources = [];
  }

  show(text) {
    const parts = blocks(text);
    let same = 0;
    while (same < parts.length && same < this.sources.length && parts[same] === this.sources[same]) same++;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    for (const part of parts.slice(same)) this.element.append(block(part, 0));
    this.sources = parts;
  }
}

/** The texts of the blocks, each of which is shown on its own. */
export function blocks(text) {
  const parts = [];
  let lines = [];
  let fence = null;
  const end = () => {
    if (lines.some((line) => line.trim())) parts.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (fence) {
      lines.push(line);
      const close = line.trim();
      if (close.startsWith(fence) && !close.replaceAll(fence[0], "")) {
        fence = null;
        end();
      }
      continue;
    }
    const opens = FENCE.exec(line);
    const isInList = lines.length > 0 && ITEM.test(lines[0]);
    if (opens && !(isInList && /^\s{2,}/.test(line))) {
      end();
      fence = opens[2];
      lines.push(line);
    } else if (!line.trim()) {
      // A list goes on behind an empty line; whether it does, the next line shows.
      if (isInList) lines.push(line);
      else end();
    } else if (isInList && lines.at(-1).trim() === "" && !ITEM.test(line) && !/^\s{2,}/.test(line)) {
      end();
      lines.push(line);
    } else if (HEADING.test(line) || RULE.test(line)) {
      end();
      lines.push(line);
      end();
    } else if (lines.length > 0 && !isInList && ITEM.test(line) && !/^\s*\d/.test(line) && !lines[0].trim().startsWith(">")) {
      end();
      lines.push(line);
    } else lines.push(line);
  }
  end();
  return parts;
}

/** The element of one block. */
function block(source, depth) {
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return codeBlock(lines, fence);
  const heading = HEADING.exec(lines[0]);
  // The page's own headings are above, so those of an answer begin one step lower.
  if (heading) return h(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2]));
  if (RULE.test(lines[0])) return h("hr");
  if (depth < MOST_DEPTH && lines[0].trim().startsWith(">")) {
    const inner = lines.map((line) => line.replace(/^\s*> ?/, "")).join("\n");
    return h("blockquote", {}, ...nested(inner, depth));
  }
  if (depth < MOST_DEPTH && ITEM.test(lines[0])) return list(lines, depth);
  if (lines.length > 1 && isTable(lines)) return table(lines);
  return h("p", {}, ...inline(lines.map((line) => line.trimStart()).join("\n").trimEnd()));
}

const nested = (text, depth) => blocks(text).map((part) => block(part, depth + 1));

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= indent.length + 1) items.push([item[4]]);
    else items.at(-1).push(line.replace(/^\s{1,4}/, (space) => space.slice(Math.min(space.length, indent.length + mark.length + 1))));
  }
  const start = isOrdered ? Number.parseInt(mark, 10) : undefined;
  const element = h(isOrdered ? "ol" : "ul", { start: start === 1 ? undefined : start });
  for (const item of items) {
    const inner = nested(item.join("\n"), depth);
    // The text of a plain item needs no paragraph around it.
    const [first, ...more] = inner;
    if (first?.tagName === "P") element.append(h("li", {}, ...first.childNodes, ...more));
    else element.append(h("li", {}, ...inner));
  }
  return element;
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

const isTable = ([heads, rule]) => heads.includes("|") && rule.includes("-") && TABLE_RULE.test(rule) && heads.split("|").length <= MOST_COLUMNS;

function table(lines) {
  const heads = cells(lines[0]);
  const sides = cells(lines[1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "end") : ""));
  const row = (tag, line) => {
    const texts = cells(line);
    return h("tr", {}, heads.map((_, i) => h(tag, { class: sides[i] || false }, ...inline(texts[i] ?? ""))));
  };
  const body = lines.slice(2).filter((line) => line.trim()).map((line) => row("td", line));
  const element = h("table", {}, h("thead", {}, row("th", lines[0])), h("tbody", {}, ...body));
  return h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Table" }, element);
}

function codeBlock(lines, fence) {
  const isClosed = lines.length > 1 && lines.at(-1).trim().startsWith(fence[2]);
  const text = lines.slice(1, isClosed ? -1 : undefined).map((line) => line.replace(new RegExp(`^ {0,${fence[1].length}}`), "")).join("\n");
  const language = fence[3].slice(0, 30);
  const button = iconButton("copy", "Copy code", () => copy(text, button));
  const code = h("code", {}, ...(isClosed ? highlight(text, language) : [text]));
  const pre = h("pre", { tabIndex: 0, role: "region", "aria-label": `Code${language ? `, ${language}` : ""}` }, code);
  return h("div", { class: "code" }, h("div", { class: "bar" }, h("span", {}, language || "text"), button), pre);
}
