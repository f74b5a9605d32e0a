// What the user does, and how the page begins. It runs after page_chats.js and page_answers.js.
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
