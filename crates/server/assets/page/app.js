// The page: its views, the models, the key, light and dark, and whether the server is there.

import * as api from "./api.js";
import { Chat } from "./chat.js";
import { announce, byId, dialog, h, icon } from "./dom.js";
import { Engine } from "./engine.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";

const AWAY_EVERY = 3000;
const isNarrow = matchMedia("(max-width: 860px)");

let models = [];
let asking = null;
let away = null;

const settings = new Settings(byId("settings"));
const sidebar = new Sidebar(byId("sidebar"), (conversation) => {
  if (isNarrow.matches) fold("sidebar", "show-list", true);
  return chat.open(conversation);
});
const host = { settings, sidebar, model, needKey, isAway, showSetting };
const chat = new Chat(host);
const engine = new Engine(byId("view-engine"), host);
settings.onkey = () => needKey();
settings.onchange = () => {
  chat.drawState();
  if (!chat.conversation.leaf) chat.draw();
};

/** The chosen model, if it writes text. */
function model() {
  return models.find((one) => one.writes && one.id === byId("model").value);
}

/** A model as the page needs it. What a model does is known once it was loaded; until then it may chat. */
const modelOf = ({ id, kind, chat }) => ({ id, kind, writes: (kind ?? "text") === "text", chats: chat ?? true });

async function loadModels() {
  try {
    const { data } = await api.json("v1/models");
    models = data.map(modelOf);
  } catch (failure) {
    if (failure.kind === "key" && (await needKey(failure))) return loadModels();
    if (failure.kind === "away") isAway();
    return undefined;
  }
  drawModels();
  return undefined;
}

function drawModels() {
  const picker = byId("model");
  const chosen = picker.value || remembered("pelton-model");
  const texts = models.filter((one) => one.writes);
  const option = (one) => h("option", { value: one.id, disabled: !one.writes }, one.writes ? one.id : `${one.id} (${one.kind}: no chat)`);
  picker.replaceChildren(...models.map(option));
  picker.value = (texts.find((one) => one.id === chosen) ?? texts[0])?.id ?? "";
  picker.disabled = texts.length === 0;
  chat.drawState();
  if (!chat.conversation.leaf) chat.draw();
}

function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // The choice lasts until the page is left.
  }
}

/** Asks for a key; whether one was given. Several callers share one dialog. */
function needKey(failure) {
  asking ??= askKey(failure).finally(() => (asking = null));
  return asking;
}

async function askKey(failure) {
  const field = h("input", { id: "key-field", type: "password", autocomplete: "off", spellcheck: false, value: failure ? "" : (api.key() ?? "") });
  const label = h("div", { class: "setting" }, h("label", { for: field.id }, "API key"), field);
  const describe = failure
    ? (failure.code === "invalid_api_key" ? "The server does not know this key." : "This server asks for an API key.") + " It is kept in this tab only."
    : "The key is sent with every request and kept in this tab only. Leave the field empty to forget it.";
  const buttons = [{ label: "Cancel" }, { name: "use", label: "Use key", kind: "primary" }];
  if ((await dialog({ title: "API key", describe, fields: [label], buttons })) !== "use") return false;
  api.setKey(field.value.trim());
  return field.value.trim() !== "";
}

/** Shows that the server is gone, and asks until it is back. */
function isAway() {
  if (away) return;
  const banner = byId("away");
  banner.hidden = false;
  banner.textContent = "The server does not answer. This page tries again every few seconds.";
  away = setInterval(async () => {
    try {
      await api.call("health");
    } catch (failure) {
      if (failure.kind === "away") return;
    }
    clearInterval(away);
    away = null;
    banner.hidden = true;
    announce("The server is back");
    loadModels();
  }, AWAY_EVERY);
}

/** Folds or unfolds a panel and tells its button. */
function fold(panel, button, isHidden) {
  byId(panel).hidden = isHidden;
  byId(button).setAttribute("aria-expanded", String(!isHidden));
  if (!isHidden && isNarrow.matches) {
    const [other, otherButton] = panel === "sidebar" ? ["settings", "show-settings"] : ["sidebar", "show-list"];
    byId(other).hidden = true;
    byId(otherButton).setAttribute("aria-expanded", "false");
  }
}

function showSetting(name) {
  choose("chat");
  fold("settings", "show-settings", false);
  settings.point(name);
}

function setUpPanels() {
  for (const [panel, button] of [["sidebar", "show-list"], ["settings", "show-settings"]]) {
    byId(button).addEventListener("click", () => {
      choose("chat");
      fold(panel, button, !byId(panel).hidden);
    });
    byId(panel).addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !isNarrow.matches) return;
      fold(panel, button, true);
      byId(button).focus();
    });
  }
  const adapt = () => fold("sidebar", "show-list", isNarrow.matches);
  isNarrow.addEventListener("change", adapt);
  adapt();
  byId("show-list").append(icon("list"));
  byId("show-settings").append(icon("settings"));
  byId("set-key").append(icon("key"));
}

const TABS = ["chat", "engine"];

function choose(name) {
  for (const tab of TABS) {
    const isChosen = tab === name;
    byId(`tab-${tab}`).setAttribute("aria-selected", String(isChosen));
    byId(`tab-${tab}`).tabIndex = isChosen ? 0 : -1;
    byId(`view-${tab}`).hidden = !isChosen;
  }
  engine.setShown(name === "engine");
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
}

function setUpTabs() {
  for (const tab of TABS) {
    byId(`tab-${tab}`).addEventListener("click", () => choose(tab));
    byId(`tab-${tab}`).addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length];
      choose(next);
      byId(`tab-${next}`).focus();
    });
  }
  const named = () => choose(TABS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat");
  addEventListener("hashchange", named);
  named();
}

function setUpTheme() {
  const button = byId("set-theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const draw = () => {
    const label = isDark() ? "Light colours" : "Dark colours";
    button.setAttribute("aria-label", label);
    button.title = label;
    button.replaceChildren(icon(isDark() ? "light" : "dark"));
  };
  button.addEventListener("click", () => {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    remember("pelton-theme", theme);
    draw();
  });
  system.addEventListener("change", draw);
  draw();
}

async function start() {
  setUpPanels();
  setUpTabs();
  setUpTheme();
  byId("model").addEventListener("change", () => {
    remember("pelton-model", byId("model").value);
    chat.drawState();
    if (!chat.conversation.leaf) chat.draw();
  });
  byId("set-key").addEventListener("click", () => needKey());
  api.onKey(loadModels);
  const [latest] = await store.all().catch(() => []);
  await loadModels();
  if (latest) await chat.open(latest);
  else await sidebar.refresh(chat.conversation);
  document.documentElement.dataset.ready = "true";
}

start();
