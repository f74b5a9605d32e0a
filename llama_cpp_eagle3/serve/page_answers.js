// What the page asks of the server: what it serves, an answer, how many tokens a conversation has.
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
  const accepted = t.draft_n_accepted || 0, parts = [`${t.predicted_n} token${t.predicted_n === 1 ? "" : "s"}`];
  if (t.predicted_per_second > 0) parts.push(`${t.predicted_per_second.toFixed(1)} tokens/s`);
  // every step gives one token beside those of its draft
  parts.push(t.draft_n ? `${(t.predicted_n / (t.predicted_n - accepted)).toFixed(2)} a step` : "no drafts");
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
    following(draw);
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
