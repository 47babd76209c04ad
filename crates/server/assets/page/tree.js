// A conversation is a tree of messages, of which one path is shown. An edited message and an answer
// that was made again stand beside the earlier one, so nothing is lost.
//
//   system? - user 1 - answer a - user 2 ...
//                    \ answer b               a branch: the answer was made again

const VERSION = 1;
/** Bounds of a file that is read. */
const MOST_CONVERSATIONS = 10000;
const MOST_NODES = 20000;
const ROLES = ["user", "assistant", "tool"];

const fresh = () => [...crypto.getRandomValues(new Uint8Array(9))].map((byte) => byte.toString(36).padStart(2, "0")).join("");

export function newConversation() {
  const now = Date.now();
  return { id: fresh(), title: "", created: now, updated: now, nodes: {}, leaf: null };
}

/** The shown messages, the first one first. */
export function path(conversation) {
  const nodes = [];
  for (let node = conversation.nodes[conversation.leaf]; node; node = conversation.nodes[node.parent]) nodes.push(node);
  return nodes.reverse();
}

/** Adds a message below `parent` (null for the first one) and shows it. */
export function add(conversation, parent, message) {
  const node = { id: fresh(), parent, at: Date.now(), ...message };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  conversation.updated = Date.now();
  if (!conversation.title && message.role === "user") conversation.title = titleOf(message.content);
  return node;
}

function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 57)}...` : line;
}

const children = (conversation, parent) =>
  Object.values(conversation.nodes).filter((node) => node.parent === parent).sort((a, b) => a.at - b.at);

/** The versions of a message, itself among them. */
export const versions = (conversation, node) => children(conversation, node.parent);

/** Shows another version of a message, with the newest messages below it. */
export function show(conversation, node) {
  let last = node;
  for (let next = node; next; next = children(conversation, next.id).at(-1)) last = next;
  conversation.leaf = last.id;
}

/** The messages of a request. */
export function messages(nodes, system) {
  const list = system.trim() ? [{ role: "system", content: system }] : [];
  for (const { role, content, calls, callId } of nodes) {
    const message = { role, content };
    if (role === "assistant" && calls?.length) {
      message.content = content || null;
      message.tool_calls = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    }
    if (role === "tool") message.tool_call_id = callId;
    list.push(message);
  }
  return list;
}

/** The text of a file with these conversations. */
export const exported = (conversations) => JSON.stringify({ pelton: "conversations", version: VERSION, conversations }, null, 1);

/**
 * Reads the text of such a file. Every conversation gets a new id, so that none that is here is
 * overwritten. Throws an error with a sentence for the user.
 */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is no JSON: ${error.message}`);
  }
  if (file?.pelton !== "conversations" || !Array.isArray(file.conversations)) {
    throw new Error("The file holds no conversations of Pelton.");
  }
  if (file.version !== VERSION) throw new Error(`The file has version ${file.version}; this page reads version ${VERSION}.`);
  if (file.conversations.length > MOST_CONVERSATIONS) throw new Error(`The file has more than ${MOST_CONVERSATIONS} conversations.`);
  return file.conversations.map((one, i) => conversationOf(one, `Conversation ${i + 1} of the file`));
}

function conversationOf(one, name) {
  const wrong = (what) => new Error(`${name}: ${what}.`);
  if (typeof one?.nodes !== "object" || one.nodes === null) throw wrong("it has no messages");
  const entries = Object.entries(one.nodes);
  if (entries.length > MOST_NODES) throw wrong(`it has more than ${MOST_NODES} messages`);
  const nodes = {};
  for (const [id, node] of entries) {
    if (!/^[a-z0-9]{1,64}$/i.test(id)) throw wrong("the name of a message is malformed");
    if (!ROLES.includes(node?.role) || typeof node.content !== "string") throw wrong(`message ${id} has no role or no text`);
    if (node.parent !== null && !Object.hasOwn(one.nodes, node.parent)) throw wrong(`message ${id} follows no message`);
    nodes[id] = nodeOf(id, node);
  }
  if (hasCircle(nodes)) throw wrong("a message follows itself");
  const leaf = Object.hasOwn(nodes, one.leaf ?? "") ? one.leaf : (Object.keys(nodes).at(-1) ?? null);
  const number = (value) => (Number.isFinite(value) ? value : Date.now());
  return { id: fresh(), title: String(one.title ?? "").slice(0, 200), created: number(one.created), updated: number(one.updated), nodes, leaf };
}

/** Keeps the known fields of a message, each of its type. */
function nodeOf(id, node) {
  const text = (value) => (typeof value === "string" ? value : undefined);
  const kept = { id, parent: node.parent, role: node.role, content: node.content, at: Number.isFinite(node.at) ? node.at : 0 };
  for (const name of ["thought", "model", "end", "callId", "mode"]) if (text(node[name]) !== undefined) kept[name] = node[name];
  if (Array.isArray(node.calls)) {
    kept.calls = node.calls.map((call) => ({ id: String(call?.id), name: String(call?.name), arguments: String(call?.arguments) }));
  }
  if (typeof node.stats === "object" && node.stats !== null) {
    kept.stats = Object.fromEntries(Object.entries(node.stats).filter(([, value]) => Number.isFinite(value)));
  }
  if (Array.isArray(node.tokens)) kept.tokens = node.tokens.filter(isToken);
  return kept;
}

const isPair = (pair) => Array.isArray(pair) && typeof pair[0] === "string" && Number.isFinite(pair[1]);
const isToken = (token) => isPair(token) && Array.isArray(token[2]) && token[2].every(isPair);

/** Whether some message is below itself. */
function hasCircle(nodes) {
  const checked = new Set();
  for (const id of Object.keys(nodes)) {
    const way = new Set();
    for (let at = id; at !== null && !checked.has(at); at = nodes[at].parent) {
      if (way.has(at)) return true;
      way.add(at);
    }
    way.forEach((one) => checked.add(one));
  }
  return false;
}
