// Conversations in the browser's storage (IndexedDB). Where it is forbidden they last until the page
// is left.

const NAME = "pelton";
const TABLE = "conversations";

let opened = null;
const inMemory = new Map();

/** Whether conversations outlive the page; known after the first use. */
export let isLasting = true;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("another tab holds the storage"));
  }).catch(() => {
    isLasting = false;
    return null;
  });
  return opened;
}

async function run(mode, work, otherwise) {
  const database = await open();
  if (!database) return otherwise();
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(TABLE, mode);
    const request = work(transaction.objectStore(TABLE));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request.error);
  });
}

/** All conversations, the newest first. */
export async function all() {
  const list = await run("readonly", (table) => table.getAll(), () => [...inMemory.values()]);
  return list.sort((a, b) => b.updated - a.updated);
}

export const save = (conversation) =>
  run("readwrite", (table) => table.put(conversation), () => inMemory.set(conversation.id, conversation));

export const remove = (id) => run("readwrite", (table) => table.delete(id), () => inMemory.delete(id));
