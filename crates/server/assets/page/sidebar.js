// The list of conversations: a new one, rename, delete, files.

import { announce, dialog, h, icon, iconButton } from "./dom.js";
import * as store from "./store.js";
import { exported, imported } from "./tree.js";

/** Largest file that is read, in bytes. */
const MOST_BYTES = 64 << 20;

export class Sidebar {
  /** `open(conversation)` shows one; null begins a new one. */
  constructor(element, open) {
    Object.assign(this, { element, open, list: [], current: null });
    this.items = h("ul", { class: "conversations" });
    this.file = h("input", { type: "file", accept: "application/json,.json", hidden: true, onchange: () => this.read() });
    const fresh = h("button", { type: "button", class: "new", id: "new-chat", onclick: () => open(null) }, icon("plus"), "New chat");
    this.note = h("p", { class: "note", hidden: true }, "This browser keeps no storage for this page: conversations end with it.");
    element.replaceChildren(fresh, this.items, this.note, h("div", { class: "row files" },
      h("button", { type: "button", class: "quiet", id: "export", onclick: () => this.write(this.list, "pelton-conversations.json") }, "Export"),
      h("button", { type: "button", class: "quiet", id: "import", onclick: () => this.file.click() }, "Import"), this.file));
  }

  async refresh(current) {
    if (current !== undefined) this.current = current;
    this.list = await store.all();
    this.note.hidden = store.isLasting;
    const rows = this.list.map((one) => this.row(one));
    this.items.replaceChildren(...(rows.length ? rows : [h("li", { class: "none" }, "No conversations yet")]));
  }

  row(one) {
    const isCurrent = one.id === this.current?.id;
    const name = one.title || "Untitled";
    return h("li", {},
      h("button", { type: "button", class: "quiet title", "aria-current": isCurrent ? "true" : undefined, title: name, onclick: () => this.open(one) }, name),
      iconButton("more", `Rename, export or delete ${name}`, () => this.manage(one)));
  }

  async manage(one) {
    const field = h("input", { id: "conversation-title", value: one.title, maxLength: 200, autocomplete: "off" });
    const label = h("div", { class: "setting" }, h("label", { for: field.id }, "Title"), field);
    const buttons = [{ name: "delete", label: "Delete", kind: "danger" }, { name: "export", label: "Export" }, { label: "Cancel" }, { name: "rename", label: "Save", kind: "primary" }];
    const chosen = await dialog({ title: "Conversation", fields: [label], buttons });
    if (chosen === "delete") await this.remove(one);
    if (chosen === "export") this.write([one], `${one.title.replace(/[^\w-]+/g, "-").slice(0, 40) || "conversation"}.json`);
    if (chosen === "rename") {
      const target = one.id === this.current?.id ? this.current : one;
      target.title = field.value.trim();
      await store.save(target);
      await this.refresh();
    }
  }

  async remove(one) {
    const buttons = [{ label: "Keep it" }, { name: "delete", label: "Delete", kind: "danger" }];
    const describe = `"${one.title || "Untitled"}" cannot be had back.`;
    if ((await dialog({ title: "Delete this conversation?", describe, buttons })) !== "delete") return;
    await store.remove(one.id);
    announce("Deleted");
    if (one.id === this.current?.id) await this.open(null);
    else await this.refresh();
  }

  write(list, name) {
    const url = URL.createObjectURL(new Blob([exported(list)], { type: "application/json" }));
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    announce(`${list.length} conversations exported`);
  }

  async read() {
    const [file] = this.file.files;
    this.file.value = "";
    if (!file) return;
    let text;
    try {
      if (file.size > MOST_BYTES) throw new Error("The file is larger than 64 MiB.");
      const list = imported(await file.text());
      for (const one of list) await store.save(one);
      text = `${list.length} conversation${list.length === 1 ? "" : "s"} imported.`;
    } catch (error) {
      text = error.message;
    }
    await this.refresh();
    await dialog({ title: "Import", describe: text, buttons: [{ name: "ok", label: "OK", kind: "primary" }] });
  }
}
