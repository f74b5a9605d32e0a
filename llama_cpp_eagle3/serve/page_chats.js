// What all parts of the page use; chats, which the browser keeps, and how their messages are shown.
"use strict";
const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "max_tokens"];
const KEPT = [...NUMBERS, "n_max", "system"], CHECKS = ["drafting", "rendered"];
const DRAFTERS = { ngram: "n-grams", grammar: "the grammar" };
const FILE_MAX = 1 << 20, SAVE_MS = 500;
let props = null; // the server's
let chats = [], chat = null; // all of them, and the one that is shown
let editing = -1; // the message that is edited
const running = new Map(); // chat -> what aborts its answer
const views = new WeakMap(); // message -> its elements
const isChat = () => !props || props.has_chat_template; // a model without a template goes on with a text instead

function make(tag, kind, text, ...children) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}
function button(text, act, kind = "", label = "") {
  const made = make("button", kind, text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}
function tell(text, buttons = [], isError = true) { // above the box, until the next message
  $("notice").className = isError ? "bar" : "bar said";
  $("notice").replaceChildren(make("span", "", text), ...buttons, button("✕", hush, "", "Close this note"));
  $("notice").hidden = false;
}
const hush = () => { $("notice").hidden = true; };
const announce = (text) => { $("status").textContent = text; };

// ---- chats, kept in the browser
let base = null;
const dirty = new Set();
let timer = 0;
function openBase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("llama-cpp-eagle3", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
function inBase(mode, act) {
  return new Promise((resolve, reject) => {
    const work = base.transaction("chats", mode), request = act(work.objectStore("chats"));
    work.oncomplete = () => resolve(request.result);
    work.onabort = work.onerror = () => reject(work.error || request.error);
  });
}
function save(changed, isNow = false) {
  dirty.add(changed);
  if (isNow) return flush();
  timer ||= setTimeout(flush, SAVE_MS);
}
async function flush() {
  clearTimeout(timer);
  timer = 0;
  const changed = [...dirty];
  dirty.clear();
  if (!base) return;
  // all at once, as the page may be left at any time; without those that were deleted
  await Promise.all(changed.filter((item) => chats.includes(item)).map(async (item) => {
    try {
      await inBase("readwrite", (all) => all.put(item));
    } catch (error) {
      tell(`This chat could not be kept in the browser: ${error && error.message}`);
    }
  }));
}
const newChat = () => ({ id: `${Date.now()}-${Math.random()}`, changed: Date.now(), messages: [], first: 0, draft: { text: "", files: [] } });
const isBlank = (c) => !c.messages.length && !c.draft.text && !c.draft.files.length;
function titleOf(c) {
  const first = c.messages[0], files = first ? first.files : c.draft.files;
  const text = first ? first.text || textOf(first) : c.draft.text;
  return text.trim().slice(0, 80) || (files && files[0] && files[0].name) || "New chat";
}
function touch(c) {
  c.changed = Date.now();
  save(c, true);
  list();
}
function list() {
  const sorted = chats.filter((c) => c === chat || !isBlank(c)).sort((a, b) => b.changed - a.changed);
  $("list").replaceChildren(...sorted.map((c) => {
    const title = titleOf(c), open = button((running.has(c) ? "… " : "") + title, () => { show(c); menu(false); });
    if (c === chat) open.setAttribute("aria-current", "true");
    return make("li", "", "", open, button("✕", () => drop(c), "delete", `Delete the chat: ${title}`));
  }));
}
async function drop(c) {
  if (running.has(c)) running.get(c).abort();
  chats = chats.filter((other) => other !== c);
  if (c === chat) show(chats.find(isBlank) || add());
  else list();
  tell(`Deleted: ${titleOf(c)}`, [button("Undo", () => { chats.push(c); touch(c); show(c); })], false);
  try {
    if (base) await inBase("readwrite", (all) => all.delete(c.id)); // before what Undo puts there
  } catch (error) {
    tell(`This chat is still kept in the browser: ${error && error.message}`);
  }
}
function add() {
  const made = newChat();
  chats.push(made);
  return made;
}
function show(c) {
  chat = c;
  sessionStorage.setItem("chat", c.id);
  editing = -1;
  hush();
  fill(c.draft);
  draw();
  $("log").scrollTop = $("log").scrollHeight;
  $("input").focus();
}

// ---- messages
const textOf = (m) => m.pieces.filter(([kind]) => kind !== "reasoning").map(([, text]) => text).join("");
const thoughtOf = (m) => m.pieces.filter(([kind]) => kind === "reasoning").map(([, text]) => text).join("");
const isRunning = (m) => m.state === "running";
function sent(m) { // as the API takes it
  if (m.role !== "user") return { role: "assistant", content: textOf(m) };
  const texts = m.files.filter((f) => f.kind === "text").map((f) => {
    const fence = "`".repeat(1 + Math.max(2, ...(f.data.match(/`+/g) || []).map((s) => s.length)));
    return `${f.name}:\n${fence}\n${f.data.replace(/\n$/, "")}\n${fence}`;
  });
  const text = [...texts, m.text].filter(Boolean).join("\n\n");
  const images = m.files.filter((f) => f.kind === "image").map((f) => ({ type: "image_url", image_url: { url: f.data } }));
  return { role: "user", content: images.length ? [...images, ...(text ? [{ type: "text", text }] : [])] : text };
}
function draw() {
  const isEmpty = !chat.messages.length;
  $("log").replaceChildren(...chat.messages.flatMap((m, i) => [
    ...(i && i === chat.first ? [make("div", "left-out", "messages above are no longer sent: the context was full")] : []),
    view(m, i),
  ]));
  if (isEmpty) {
    const legend = make("p", "empty", `${isChat() ? "" : "The model has no chat template: it goes on with your text. "}While a text is written, its tokens are tinted by who drafted them: `);
    legend.append(make("span", "model", "a model"), " ", make("span", "ngram", "n-grams"), " ", make("span", "grammar", "a grammar"));
    $("log").append(legend);
  }
  buttons();
  list();
}
function buttons() {
  const isOn = running.has(chat);
  $("send").hidden = isOn;
  $("stop").hidden = !isOn;
  $("editing").hidden = editing < 0;
  $("log").setAttribute("aria-busy", String(isOn));
  $("send").textContent = isChat() ? "Send" : "Continue";
  $("input").placeholder = isChat() ? "Message" : "A text that the model goes on with";
  $("attach").hidden = !isChat();
}
function fileItem(f, remove) {
  const item = make("li");
  if (f.kind === "image") {
    const image = make("img");
    image.src = f.data;
    image.alt = f.name;
    item.append(image);
  } else item.textContent = f.name;
  if (remove) item.append(button("✕", remove, "", `Remove ${f.name}`));
  return item;
}
function view(m, i) {
  const article = make("article", `message ${m.role}`);
  article.setAttribute("aria-label", m.role === "user" ? "You" : "Model");
  const foot = make("div", "foot");
  if (m.role === "user") {
    if (m.files.length) article.append(make("ul", "files", "", ...m.files.map((f) => fileItem(f))));
    article.append(make("div", "plain", m.text), foot);
    foot.append(button("Copy", (event) => copy(m.text, event.target)), button("Edit", () => edit(i)));
    return article;
  }
  const thought = make("details", "thought", "", make("summary", "", "Thought"), make("div"));
  const parts = { article, thought, tokens: make("div", "tokens"), state: make("div", "state"), foot };
  thought.hidden = true;
  article.append(thought, parts.tokens, parts.state, foot);
  views.set(m, parts);
  for (const [kind, text] of m.pieces) put(m, kind, text);
  finish(m);
  return article;
}
function put(m, kind, text) { // add a text to a message that is shown, or not
  const parts = views.get(m);
  if (!parts) return;
  if (kind === "reasoning") {
    parts.thought.hidden = false;
    parts.thought.open = isRunning(m);
    parts.thought.lastChild.append(text);
    return;
  }
  if (isRunning(m)) parts.thought.open = false;
  const last = parts.tokens.lastChild;
  if (last && last.className === kind) last.textContent += text;
  else {
    const span = make("span", kind, text);
    if (kind in DRAFTERS || kind === "model") span.title = `drafted by ${DRAFTERS[kind] || "a model"}`;
    parts.tokens.append(span);
  }
}
// Change what is shown of the chat. Who has read to its end stays there.
function following(change) {
  const log = $("log"), follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  change();
  if (follows) log.scrollTop = log.scrollHeight;
}
function grow(c, m, kind, text) {
  const last = m.pieces[m.pieces.length - 1];
  if (last && last[0] === kind) last[1] += text;
  else m.pieces.push([kind, text]);
  if (c === chat) following(() => put(m, kind, text));
  save(c);
}
function finish(m) { // what is below a message: how it ended, figures and buttons
  const { article, state, foot } = views.get(m), c = chat, isLast = m === c.messages[c.messages.length - 1];
  state.replaceChildren();
  foot.replaceChildren();
  state.hidden = isRunning(m) || !m.note;
  state.append(m.note || "");
  if (m.figures) foot.append(make("span", "figures", m.figures));
  if (isRunning(m)) return;
  if (isLast && m.role === "assistant") {
    if (m.state === "full") state.append(button("Go on without the oldest messages", () => goOn(c, m)));
    else if (m.note && textOf(m)) state.append(button("Continue", () => proceed(c, m)));
    foot.prepend(button("Regenerate", () => again(c, m)));
  }
  foot.prepend(button("Copy", (event) => copy(textOf(m), event.target)));
  if (m.role === "assistant" && textOf(m).trim()) render(article, textOf(m));
}
async function render(article, text) {
  const old = article.querySelector(".markdown"), made = make("div", "markdown");
  try {
    made.innerHTML = (await post("markdown", { markdown: text })).html; // the server has escaped what is no Markdown
  } catch (error) {
    article.querySelector(".state").hidden = false;
    article.querySelector(".state").append(` (not shown as Markdown: ${error.message})`);
    return;
  }
  for (const link of made.querySelectorAll("a")) { link.target = "_blank"; link.rel = "noopener noreferrer"; }
  for (const code of made.querySelectorAll("pre")) {
    const text = code.textContent, around = make("div", "code");
    code.replaceWith(around);
    around.append(code, button("Copy", (event) => copy(text, event.target), "", "Copy this code"));
  }
  following(() => {
    if (old) old.remove();
    article.querySelector(".tokens").after(made);
  });
}
async function copy(text, from) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // pages without TLS have no clipboard
    const area = make("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    from.focus();
  }
  from.textContent = "Copied";
  announce("Copied");
  setTimeout(() => { from.textContent = "Copy"; }, 1500);
}
