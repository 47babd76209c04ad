// Elements of the page. Text only ever becomes a text node, so no text of a model, a server or a
// file is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Makes an element. Properties whose names begin with `on` are listeners, `class` and names with a
 * hyphen are attributes, `false`, `null` and `undefined` leave an attribute out.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class" || name.includes("-") || name === "role" || name === "for") {
      element.setAttribute(name, value === true ? "" : value);
    } else element[name] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Makes an SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const PATHS = {
  list: "M4 6h16M4 12h16M4 18h10",
  settings: "M4 7h9M19 7h1M4 17h1M11 17h9M16 4.500v5M8 14.500v5",
  key: "M14.5 9.500a4 4 0 1 0-3.3 3.940L13 15h2v2h2v2h3v-3l-5.7-5.500zM9.5 8.500h.01",
  light: "M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.600l1.4 1.400M17 17l1.4 1.400M5.6 18.4 7 17M17 7l1.4-1.400M16 12a4 4 0 1 1-8 0 4 4 0 0 1 8 0z",
  dark: "M20 14.500A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.500z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  again: "M20 5v5h-5M19.4 10A8 8 0 1 0 20 14",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  plus: "M12 5v14M5 12h14",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  tokens: "M4 7h6v4H4zM14 7h6v4h-6zM4 15h10v4H4zM18 15h2v4h-2z",
};

/** A drawn sign, which says nothing to a screen reader. */
export function icon(name) {
  const path = svg("path", { d: PATHS[name] });
  return svg("svg", { viewBox: "0 0 24 24", class: "sign", "aria-hidden": "true", focusable: "false" }, path);
}

/** A button with a sign and a name that is read aloud and shown on hover. */
export function iconButton(name, label, onclick, properties = {}) {
  return h("button", { type: "button", class: "quiet icon", "aria-label": label, title: label, onclick, ...properties }, icon(name));
}

export const byId = (id) => document.getElementById(id);

/** Says a sentence to screen readers. */
export function announce(text) {
  const place = byId("announcer");
  place.textContent = "";
  // An equal sentence would not be read a second time.
  setTimeout(() => (place.textContent = text), 30);
}

/** Copies a text and says so on the button. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Outside of a secure context there is no clipboard; a selection still copies.
    const area = h("textarea", { class: "hidden", value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  announce("Copied");
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1200);
}

/**
 * Shows a dialog and waits for its end. `fields` are elements; answers with the name of
 * the button, or null where the dialog was left.
 */
export function dialog({ title, fields = [], buttons, describe }) {
  return new Promise((resolve) => {
    const from = document.activeElement;
    const heading = h("h2", { id: "dialog-title" }, title);
    const row = h("div", { class: "row end" }, buttons.map(({ name, label, kind = "" }) =>
      h("button", { type: "button", class: kind, onclick: () => box.close(name ?? "") }, label)));
    const box = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title" }, heading, describe ? h("p", {}, describe) : null, ...fields, row);
    // Enter in a field is the last button, which is what the dialog is for.
    box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !event.target.matches("input")) return;
      event.preventDefault();
      box.close(buttons.at(-1).name);
    });
    box.addEventListener("close", () => {
      box.remove();
      if (from?.isConnected) from.focus();
      resolve(box.returnValue || null);
    });
    document.body.append(box);
    box.showModal();
    (box.querySelector("input, textarea") ?? row.lastChild).focus();
  });
}
