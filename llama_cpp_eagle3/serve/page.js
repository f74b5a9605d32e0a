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
  if (base) await inBase("readwrite", (all) => all.delete(c.id));
  if (c === chat) show(chats.find(isBlank) || add());
  else list();
  tell(`Deleted: ${titleOf(c)}`, [button("Undo", () => { chats.push(c); touch(c); show(c); })], false);
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
    const legend = make("p", "empty", isChat() ? "Tokens of an answer are tinted by who drafted them: " : "The model has no chat template: it goes on with your text. Tokens are tinted by who drafted them: ");
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
function grow(c, m, kind, text) {
  const log = $("log"), follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const last = m.pieces[m.pieces.length - 1];
  if (last && last[0] === kind) last[1] += text;
  else m.pieces.push([kind, text]);
  put(m, kind, text);
  if (c === chat && follows) log.scrollTop = log.scrollHeight;
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
  if (old) old.remove();
  const log = $("log"), follows = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  article.querySelector(".tokens").after(made);
  if (follows) log.scrollTop = log.scrollHeight;
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

// ---- the server
const headers = () => ({ "Content-Type": "application/json", ...($("key").value ? { Authorization: `Bearer ${$("key").value}` } : {}) });
async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { headers: headers(), ...options });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(`The server does not answer (${error.message})`);
  }
  if (response.ok) return response;
  let found = {};
  try { found = (await response.json()).error || {}; } catch { /* not ours */ }
  throw Object.assign(new Error(found.message || `The server answers with status ${response.status}`), { status: response.status, type: found.type });
}
const post = async (path, body, options = {}) => (await request(path, { method: "POST", body: JSON.stringify(body), ...options })).json();
async function* events(response) {
  const decoder = new TextDecoder();
  let rest = "";
  for (const reader = response.body.getReader(); ;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
  }
}
async function describe() {
  try {
    props = await (await request("props")).json();
  } catch (error) {
    $("model").textContent = "llama-cpp-eagle3";
    return tell(error.status === 401 ? "This server wants an API key." : error.message, [
      error.status === 401 ? button("Settings", () => settings()) : button("Try again", () => { hush(); describe(); }),
    ]);
  }
  $("model").textContent = document.title = props.model_alias;
  const params = props.default_generation_settings.params, drafting = props.speculative;
  for (const name of NUMBERS) if (name in params && name !== "seed" && params[name] >= 0) $(name).placeholder = params[name];
  $("system").parentElement.hidden = $("rendered").parentElement.hidden = !isChat();
  $("drafting").disabled = !drafting.enabled;
  $("drafting").parentElement.title = drafting.enabled ? "" : `no drafts: ${drafting.reason}`;
  $("picker").accept = props.modalities.vision ? "image/*,text/*,*" : "text/*,*";
  if (chat) draw();
}
function conversation(c, more = []) {
  const system = $("system").value.trim();
  return [...(system ? [{ role: "system", content: system }] : []), ...c.messages.slice(c.first).filter((m) => !isRunning(m) || m.pieces.length).map(sent), ...more];
}
function options() {
  const found = { stream: true, timings_per_token: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) if ($(name).value !== "") found[name] = Number($(name).value);
  if (!$("drafting").checked) found.speculative = false;
  else if ($("n_max").value !== "") found.speculative = { n_max: Number($("n_max").value) };
  return found;
}
function figures(t) {
  const accepted = t.draft_n_accepted || 0, parts = [`${t.predicted_n} tokens`];
  if (t.predicted_per_second > 0) parts.push(`${t.predicted_per_second.toFixed(1)} tokens/s`);
  // every step gives one token beside those of its draft
  parts.push(t.draft_n ? `${(t.predicted_n / (t.predicted_n - accepted)).toFixed(2)} tokens a step` : "no drafts");
  const plain = t.draft_n && props && props.speculative.plain_tokens_per_second;
  if (plain && t.predicted_per_second > 0) parts.push(`${(t.predicted_per_second / plain).toFixed(2)} × plain`);
  return parts.join(" · ");
}
function kindOf(choice) {
  if (!choice.drafted) return "own";
  return (choice.drafted_by || []).find((name) => name in DRAFTERS) || "model";
}
// Let the model write a message, which is in the chat already. undo(): takes back what was done for it, if nothing comes.
async function write(c, m, undo) {
  const controller = new AbortController(), n = m.pieces.length;
  let reason = "", usage = null, timings = null, failure = null;
  running.set(c, controller);
  Object.assign(m, { state: "running", note: "", figures: "" });
  hush();
  touch(c);
  if (c === chat) { draw(); $("log").scrollTop = $("log").scrollHeight; }
  announce("The model is answering");
  try {
    const body = { ...options(), ...(isChat() ? { messages: conversation(c) } : { prompt: textOf(m) }) };
    const path = isChat() ? "v1/chat/completions" : "v1/completions";
    const response = await request(path, { method: "POST", body: JSON.stringify(body), signal: controller.signal });
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const choice = event.choices[0], delta = choice && (isChat() ? choice.delta : { content: choice.text });
      if (delta && delta.reasoning_content) grow(c, m, "reasoning", delta.reasoning_content);
      if (delta && delta.content) grow(c, m, kindOf(choice), delta.content);
      reason = (choice && choice.finish_reason) || reason;
      usage = event.usage || usage;
      if (event.timings) measured(m, timings = event.timings);
    }
    if (!reason) throw new Error("The connection ended before the answer did");
  } catch (error) {
    failure = error;
  }
  running.delete(c);
  const isStopped = failure && failure.name === "AbortError", n_ctx = props && props.default_generation_settings.n_ctx;
  m.state = "done";
  if (failure && m.pieces.length === n) { // nothing came
    undo();
    if (isStopped) announce("Stopped");
    else failed(c, failure);
  } else if (failure) {
    m.note = isStopped ? "Stopped." : `Ended by an error: ${failure.message}.`;
  } else if (reason === "length" && usage && usage.total_tokens >= n_ctx) {
    Object.assign(m, { state: "full", note: `The context is full (${n_ctx} tokens).` });
  } else if (reason === "length") m.note = "Ended at max_tokens.";
  else if (m.pieces.length === n) m.note = "The model answered nothing.";
  touch(c);
  if (c === chat) {
    draw();
    announce(failure && !isStopped ? "" : `${m.note || "The answer is complete."} ${isChat() ? textOf(m) : ""}`);
    $("input").focus();
  }
  if (!timings || !timings.draft_n) return;
  // what a plain pass costs may be known by now; the engine answers that after its step, which may be a long one
  try { props = await (await request("props")).json(); } catch { return; /* the figures so far stay */ }
  if (isRunning(m)) return;
  measured(m, timings);
  save(c);
}
function measured(m, timings) { // show figures, where the message is shown
  m.figures = figures(timings);
  const parts = views.get(m), shown = parts && parts.foot.querySelector(".figures");
  if (shown) shown.textContent = m.figures;
  else if (parts) parts.foot.append(make("span", "figures", m.figures));
}
function failed(c, error) {
  if (c !== chat) return;
  const isFull = error.type === "exceed_context_size_error", found = [];
  if (isFull && isChat() && c.messages.length > c.first) found.push(button("Go on without the oldest messages", () => goOn(c)));
  if (isFull) found.push(button(isChat() ? "New chat" : "New text", () => show(chats.find(isBlank) || add())));
  if (error.status === 401) found.push(button("Settings", () => settings()));
  tell(`${error.message}. Your message was not sent: it is back in the box.`.replace("..", "."), found);
}
// Begin what is sent at a later message, so that it takes half of the context at most.
async function goOn(c, m) {
  const n_ctx = props.default_generation_settings.n_ctx, before = c.first, more = m ? [] : [sent(take())];
  const starts = c.messages.flatMap((x, i) => (x.role === "user" && i > before ? [i] : []));
  if (!m) starts.push(c.messages.length);
  let n = 0;
  try {
    for (const i of starts) {
      c.first = i;
      n = (await post("v1/chat/completions/input_tokens", { messages: conversation(c, more) })).input_tokens;
      if (n <= n_ctx / 2) break;
    }
  } catch (error) {
    c.first = before;
    return tell(error.message);
  }
  if (!n || n > n_ctx * 0.9) {
    c.first = before;
    draw();
    return tell(`The last message alone fills the context of ${n_ctx} tokens: a server with a larger -c has room for it.`);
  }
  return m ? proceed(c, m) : $("form").requestSubmit();
}

// ---- what the user does
const take = () => ({ role: "user", text: $("input").value, files: chat.draft.files });
function fill(draft) {
  chat.draft = draft;
  $("input").value = draft.text;
  $("files").replaceChildren(...draft.files.map((f) => fileItem(f, () => {
    fill({ text: $("input").value, files: chat.draft.files.filter((other) => other !== f) });
    save(chat);
    $("input").focus();
  })));
}
function giveBack(c, m) { // into the box, before what is there
  const text = [m.text, c.draft.text].filter(Boolean).join("\n\n"), draft = { text, files: [...m.files, ...c.draft.files] };
  if (c === chat) fill(draft);
  else c.draft = draft;
}
function submit() {
  const c = chat, m = take(), last = c.messages[c.messages.length - 1];
  if (running.has(c)) return;
  if (!isChat()) {
    if (!m.text && !last) return;
    const text = last || { role: "text", pieces: [], state: "done" };
    if (!last) c.messages.push(text);
    if (m.text) text.pieces.push(["typed", m.text]);
    fill({ text: "", files: [] });
    write(c, text, () => {
      if (m.text) text.pieces.pop();
      if (!text.pieces.length) c.messages.pop();
      giveBack(c, m);
    });
    return;
  }
  if (!m.text.trim() && !m.files.length) return;
  const at = editing < 0 ? c.messages.length : editing, first = c.first;
  const cut = c.messages.splice(at), answer = { role: "assistant", pieces: [] };
  if (at < first) c.first = 0;
  editing = -1;
  c.messages.push(m, answer);
  fill({ text: "", files: [] });
  write(c, answer, () => {
    c.messages.splice(at, 2, ...cut);
    c.first = first;
    if (c === chat && cut.length) editing = at;
    giveBack(c, m);
  });
}
function again(c, old) {
  if (running.has(c)) return;
  const answer = { role: "assistant", pieces: [] }, at = c.messages.indexOf(old);
  c.messages.splice(at, 1, answer);
  write(c, answer, () => { c.messages.splice(at, 1, old); });
}
function proceed(c, m) {
  if (running.has(c)) return;
  const { state, note, figures } = m;
  write(c, m, () => Object.assign(m, { state, note, figures }));
}
function edit(i) {
  if (running.has(chat)) return;
  const m = chat.messages[i];
  editing = i;
  fill({ text: m.text, files: m.files });
  buttons();
  $("input").focus();
}
function leaveEdit() {
  editing = -1;
  fill({ text: "", files: [] });
  buttons();
  $("input").focus();
}
const read = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});
async function attach(files) {
  const c = chat, found = [], refused = [];
  for (const file of files) {
    try {
      if (file.type.startsWith("image/")) {
        if (!props || !props.modalities.vision) throw new Error("this model reads no images (a server with --mmproj does)");
        found.push({ kind: "image", name: file.name, data: await read(file) });
      } else {
        if (file.size > FILE_MAX) throw new Error("it is larger than 1 MiB");
        const data = await file.arrayBuffer().then((bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes)).catch(() => { throw new Error("it is no text in UTF-8"); });
        found.push({ kind: "text", name: file.name, data });
      }
    } catch (error) {
      refused.push(`${file.name} was not attached: ${error.message}.`);
    }
  }
  if (c !== chat) return;
  fill({ text: $("input").value, files: [...c.draft.files, ...found] });
  save(c);
  if (refused.length) tell(refused.join(" "));
  $("input").focus();
}
function menu(isOpen) {
  $("chats").classList.toggle("open", isOpen);
  $("menu").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) $("new").focus();
}
const settings = () => $("settings").showModal();
function keepSettings() {
  const kept = Object.fromEntries([...KEPT.map((id) => [id, $(id).value]), ...CHECKS.map((id) => [id, $(id).checked])]);
  localStorage.setItem("settings", JSON.stringify(kept));
  sessionStorage.setItem("key", $("key").value);
  document.body.classList.toggle("rendered", $("rendered").checked);
}
function findSettings() {
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem("settings")) || {}; } catch { /* damaged */ }
  for (const id of KEPT) if (typeof kept[id] === "string") $(id).value = kept[id];
  for (const id of CHECKS) if (typeof kept[id] === "boolean") $(id).checked = kept[id];
  $("key").value = sessionStorage.getItem("key") || "";
  document.body.classList.toggle("rendered", $("rendered").checked);
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("input").addEventListener("input", () => { chat.draft.text = $("input").value; save(chat); });
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("form").requestSubmit(); }
  const asked = chat.messages.map((m) => m.role).lastIndexOf("user");
  if (event.key === "ArrowUp" && !$("input").value && asked >= 0) { event.preventDefault(); edit(asked); }
});
$("input").addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) { event.preventDefault(); attach([...event.clipboardData.files]); }
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => { event.preventDefault(); if (isChat()) attach([...event.dataTransfer.files]); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("settings").open) return;
  if ($("chats").classList.contains("open")) { menu(false); $("menu").focus(); }
  else if (running.has(chat)) running.get(chat).abort();
  else if (editing >= 0) leaveEdit();
});
document.addEventListener("click", (event) => {
  if ($("chats").classList.contains("open") && !event.target.closest("#chats, #menu")) menu(false);
});
$("attach").addEventListener("click", () => $("picker").click());
$("picker").addEventListener("change", async () => { await attach([...$("picker").files]); $("picker").value = ""; });
$("stop").addEventListener("click", () => running.has(chat) && running.get(chat).abort());
$("leave").addEventListener("click", leaveEdit);
$("new").addEventListener("click", () => { show(chats.find(isBlank) || add()); menu(false); });
$("menu").addEventListener("click", () => menu(!$("chats").classList.contains("open")));
$("configure").addEventListener("click", settings);
$("close").addEventListener("click", () => $("settings").close());
$("settings").addEventListener("change", keepSettings);
$("rendered").addEventListener("change", keepSettings);
$("key").addEventListener("change", () => { hush(); describe(); });
addEventListener("pagehide", flush);

function mend(c) { // the page was left while its last message was answered
  const m = c.messages.find(isRunning), at = c.messages.indexOf(m);
  if (!m) return;
  Object.assign(m, { state: "done", note: "Stopped: the page was left." });
  if (m.pieces.length) return;
  const [asked] = c.messages.splice(at - 1, 2);
  c.draft = { text: [asked.text, c.draft.text].filter(Boolean).join("\n\n"), files: [...asked.files, ...c.draft.files] };
}
async function start() {
  findSettings();
  let told = "";
  try {
    base = await openBase();
    chats = await inBase("readonly", (all) => all.getAll());
  } catch (error) {
    told = `This browser keeps no chats here, a reload loses them: ${error && error.message}`;
  }
  chats.forEach(mend);
  await describe();
  const last = sessionStorage.getItem("chat"), isSaid = !$("notice").hidden;
  const said = [...$("notice").childNodes];
  show(chats.find((c) => c.id === last) || chats.find(isBlank) || add());
  if (isSaid) { $("notice").replaceChildren(...said); $("notice").hidden = false; }
  else if (told) tell(told);
}
start();
