// The page of `unicloze serve`: plain functions over the elements of index.html.
"use strict";

const MASK = "[MASK]";
const FIRST_BLANKS = 2; // the longest words of the text that the page begins with
const PLAY_MS = 1100;
const SURPRISE_LEVELS = [2, 4, 7, 10]; // bits
const byId = (id) => document.getElementById(id);

// Requests

function showError(sentence) {
  byId("error").textContent = sentence;
  byId("error").hidden = !sentence;
}

async function send(path, content, signal) {
  const headers = { "Content-Type": "application/json" };
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(content), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: is it still running?");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) byId("token-form").hidden = false;
  const said = await answer.json().catch(() => ({}));
  throw new Error(said.error || `The server answered ${answer.status}.`);
}

// Runs what a form does when it is sent, with its button disabled meanwhile.
function onSubmit(section, work) {
  const form = byId(section).querySelector("form");
  const button = form.querySelector("button.main");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    showError("");
    button.disabled = true;
    try {
      await work();
    } catch (error) {
      if (error.name !== "AbortError") showError(error.message);
    } finally {
      button.disabled = false;
    }
  });
  for (const area of form.querySelectorAll("textarea")) {
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
  }
}

// Elements

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const percent = (share) => (share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`);

function bar(label, share) {
  const fill = element("span", { className: "fill" });
  fill.style.width = `${100 * share}%`;
  return element(
    "li",
    {},
    element("code", { textContent: label }),
    element("div", { className: "track" }, fill),
    element("span", { className: "share", textContent: percent(share) }),
  );
}

function note(id, text) {
  byId(id).textContent = text || "";
  byId(id).hidden = !text;
}

function chosen(name) {
  return document.querySelector(`input[name=${name}]:checked`)?.value;
}

// Tabs

function selectTab(tab, focus) {
  for (const one of document.querySelectorAll("[role=tab]")) {
    const selected = one === tab;
    one.setAttribute("aria-selected", String(selected));
    one.tabIndex = selected ? 0 : -1;
    byId(one.getAttribute("aria-controls")).hidden = !selected;
  }
  showError("");
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  if (focus) tab.focus();
}

function setUpTabs(abilities) {
  const tabs = [...document.querySelectorAll("[role=tab]")].filter((tab) => abilities.includes(tab.dataset.needs));
  tabs.forEach((tab, place) => {
    tab.hidden = false;
    tab.addEventListener("click", () => selectTab(tab, false));
    tab.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      selectTab(tabs[(moves[event.key] + tabs.length) % tabs.length], true);
    });
  });
  if (!tabs.length) {
    byId("subtitle").textContent = "This model turns texts into vectors: see the endpoint /embed.";
    return;
  }
  byId("subtitle").textContent = `A model to ${tabs.map((tab) => tab.dataset.does).join(", ").replace(/, ([^,]*)$/, " and $1")}.`;
  document.querySelector("[role=tablist]").hidden = false;
  selectTab(tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) || tabs[0], false);
}

// Fill

const blanks = { pieces: [], order: [] }; // pieces of the text, and the words blanked, in the order of the clicks

function piecesOf(text) {
  const found = [];
  for (const part of text.split(/(\[MASK\])/)) {
    if (part === MASK) {
      found.push({ text: part, word: true });
    } else if (globalThis.Intl?.Segmenter) {
      for (const piece of new Intl.Segmenter(undefined, { granularity: "word" }).segment(part)) {
        found.push({ text: piece.segment, word: Boolean(piece.isWordLike) });
      }
    } else {
      for (const piece of part.split(/([\p{L}\p{N}]+)/u)) {
        if (piece) found.push({ text: piece, word: /[\p{L}\p{N}]/u.test(piece) });
      }
    }
  }
  return found;
}

function readText(longest = 0) {
  blanks.pieces = piecesOf(byId("fill-text").value);
  const lengthAt = (i) => (blanks.pieces[i].word ? blanks.pieces[i].text.length : 0);
  const masks = blanks.pieces.flatMap((piece, i) => (piece.text === MASK ? [i] : []));
  const long = [...blanks.pieces.keys()].filter(lengthAt).sort((a, b) => lengthAt(b) - lengthAt(a)).slice(0, longest);
  blanks.order = masks.length ? masks : long.sort((a, b) => a - b);
  drawWords();
}

function toggle(place) {
  const at = blanks.order.indexOf(place);
  if (at < 0) blanks.order.push(place);
  else if (blanks.pieces[place].text !== MASK) blanks.order.splice(at, 1);
  drawWords();
}

// Draws the words once, and then only their state, so that the focus stays where it is.
function drawWords() {
  const box = byId("words");
  const drawn = box.dataset.text === JSON.stringify(blanks.pieces);
  if (!drawn) {
    box.dataset.text = JSON.stringify(blanks.pieces);
    box.replaceChildren(
      ...blanks.pieces.map((piece, place) => {
        if (!piece.word) return document.createTextNode(piece.text);
        const button = element("button", { type: "button", textContent: piece.text });
        button.dataset.place = place;
        button.addEventListener("click", () => toggle(place));
        return button;
      }),
    );
  }
  for (const button of box.querySelectorAll("button")) {
    const number = blanks.order.indexOf(Number(button.dataset.place)) + 1;
    button.setAttribute("aria-pressed", String(number > 0));
    button.dataset.number = number;
    const word = button.textContent;
    if (number) button.setAttribute("aria-label", `${word}, blank ${number}`);
    else button.removeAttribute("aria-label");
  }
}

const shown = { result: null, step: 1, last: 1, timer: 0 };

async function fill() {
  if (!blanks.order.length) throw new Error("Nothing is blank: click a word first.");
  const text = blanks.pieces.map((piece, i) => (blanks.order.includes(i) ? MASK : piece.text)).join("");
  const places = [...blanks.order].sort((a, b) => a - b);
  const order = { "at-once": null, clicks: blanks.order.map((place) => places.indexOf(place) + 1) };
  const way = chosen("order");
  const answer = await send("/fill", { text, top_k: 5, order: way in order ? order[way] : way, picture: true });
  stopPlaying();
  shown.result = await answer.json();
  shown.last = Math.max(...shown.result.masks.map((mask) => mask.step));
  shown.step = 1;
  byId("filled").hidden = false;
  note("fill-note", shown.result.note && `Note: ${shown.result.note}.`);
  drawPicture(shown.result.picture);
  drawStep();
  if (shown.last > 1 && !matchMedia("(prefers-reduced-motion: reduce)").matches) play();
}

function drawPicture(picture) {
  byId("picture").hidden = !picture;
  if (!picture) return;
  byId("picture-caption").textContent = picture.caption;
  byId("picture-image").src = `data:image/svg+xml,${encodeURIComponent(picture.svg)}`;
  byId("picture-image").alt = picture.title;
}

function hintAtColumns() {
  const box = byId("picture-image").parentElement;
  byId("picture-hint").hidden = box.scrollWidth <= box.clientWidth;
}

// A candidate as it stands in the text: pieces of words lose the sign that they are pieces.
const bare = (token) => (token.length > 2 && token.startsWith("##") ? token.slice(2) : token);

function drawStep() {
  const { result, step, last } = shown;
  const characters = [...result.text]; // places count code points
  const between = (start, end) => characters.slice(start, end).join("");
  const parts = [];
  let end = 0;
  for (const mask of result.masks) {
    parts.push(between(end, mask.start));
    end = mask.end;
    const open = mask.step > step;
    const mark = element("mark", { textContent: open ? "____" : bare(mask.readable[0]) });
    mark.classList.toggle("open", open);
    mark.classList.toggle("now", mask.step === step);
    if (last > 1) mark.append(element("sup", { textContent: mask.step }));
    parts.push(mark);
  }
  byId("filled-text").replaceChildren(...parts, between(end));
  byId("guesses").replaceChildren(
    ...result.masks.flatMap((mask, number) => {
      if (mask.step !== step) return [];
      const bars = mask.readable.map((token, i) => bar(token, mask.top[i][1]));
      return [element("div", {}, element("h3", { textContent: `Blank ${number + 1}` }), element("ul", { className: "bars" }, ...bars))];
    }),
  );
  byId("step").textContent = `Step ${step} of ${last}`;
  byId("previous").disabled = step === 1;
  byId("next").disabled = step === last;
  byId("play").disabled = last === 1;
}

function move(by) {
  shown.step = Math.min(shown.last, Math.max(1, shown.step + by));
  drawStep();
}

function stopPlaying() {
  clearInterval(shown.timer);
  shown.timer = 0;
  byId("play").textContent = "Play";
}

function play() {
  stopPlaying();
  if (shown.step === shown.last) shown.step = 1;
  drawStep();
  byId("play").textContent = "Pause";
  shown.timer = setInterval(() => {
    move(1);
    if (shown.step === shown.last) stopPlaying();
  }, PLAY_MS);
}

function setUpFill(abilities) {
  for (const input of document.querySelectorAll("input[name=order]")) {
    input.disabled = input.value !== "at-once" && !abilities.includes("orders");
    input.checked = input.value === (abilities.includes("orders") ? "confidence" : "at-once");
  }
  readText(FIRST_BLANKS);
  byId("picture-image").addEventListener("load", hintAtColumns);
  addEventListener("resize", hintAtColumns);
  byId("fill-text").addEventListener("input", () => readText());
  byId("unblank").addEventListener("click", () => readText());
  byId("previous").addEventListener("click", () => (stopPlaying(), move(-1)));
  byId("next").addEventListener("click", () => (stopPlaying(), move(1)));
  byId("play").addEventListener("click", () => (shown.timer ? stopPlaying() : play()));
  onSubmit("fill", fill);
}

// Score

const judged = { score: null };

async function score() {
  const answer = await send("/score", { text: byId("score-text").value });
  judged.score = (await answer.json()).scores[0];
  for (const input of document.querySelectorAll("input[name=measure]")) {
    input.disabled = judged.score[`${input.value}_per_token`] === null;
    if (input.disabled) input.checked = false;
  }
  if (!chosen("measure")) document.querySelector("input[name=measure]:not(:disabled)").checked = true;
  drawScore();
}

function drawScore() {
  if (!judged.score) return;
  const measure = chosen("measure");
  const { tokens, note: caveat } = judged.score;
  const logs = judged.score[`${measure}_per_token`];
  byId("scored").hidden = false;
  byId("tokens").replaceChildren(
    ...tokens.map((token, i) => {
      const bits = logs[i] === null ? null : -logs[i] / Math.LN2;
      const level = bits === null ? "unknown" : `s${SURPRISE_LEVELS.filter((from) => bits >= from).length}`;
      const said = bits === null ? "not scored" : bits.toFixed(1);
      return element("li", { className: level }, token.replace(/^[\u0120\u2581]/, ""), element("small", { textContent: said }));
    }),
  );
  const perplexity = judged.score[`${measure}_perplexity`];
  const bytes = measure === "chain" && judged.score.bits_per_byte;
  const amount = perplexity === null ? "no score" : perplexity.toLocaleString("en", { maximumFractionDigits: 1 });
  byId("score-summary").textContent = `Perplexity ${amount}${bytes ? `, ${bytes.toFixed(2)} bits per byte` : ""}.`;
  const caveats = (caveat || "").split("; ").filter((one) => measure === "chain" || !one.startsWith("the chain rule"));
  note("score-note", caveats.join("") && `Note: ${caveats.join("; ")}.`);
}

function setUpScore() {
  document.querySelector("input[name=measure][value=pseudo]").checked = true;
  for (const input of document.querySelectorAll("input[name=measure]")) input.addEventListener("change", drawScore);
  onSubmit("score", score);
}

// Generate

// One text field for each text that the model reads.
function addTexts(section, reads, example) {
  reads.forEach((name, i) => {
    const id = `${section}-text-${i}`;
    const label = reads.length === 1 ? "Text" : name[0].toUpperCase() + name.slice(1);
    const area = element("textarea", { id, rows: 2, spellcheck: false, value: i ? "" : example });
    byId(`${section}-texts`).append(element("label", { htmlFor: id, textContent: label }), area);
  });
}

function textsOf(section) {
  const texts = [...byId(`${section}-texts`).querySelectorAll("textarea")].map((area) => area.value);
  while (texts.length > 1 && !texts.at(-1).trim()) texts.pop();
  return texts.length === 1 ? texts[0] : texts;
}

const writing = { controller: null };

async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line.replace(/^data: /, ""));
  }
}

async function generate(continues) {
  const text = textsOf("generate");
  const drawn = byId("sample").checked ? { sample: true, temperature: Number(byId("temperature").value) } : { sample: false };
  const content = { text, stream: true, num_results: 1, max_length: Number(byId("max-length").value), ...drawn };
  writing.controller = new AbortController();
  byId("stop").disabled = false;
  try {
    const answer = await send("/generate", content, writing.controller.signal);
    byId("written").hidden = false;
    byId("prompt").textContent = continues ? text : "";
    byId("continuation").textContent = "";
    byId("write-state").textContent = "Writing";
    for await (const event of eventsOf(answer)) {
      if (event.error) throw new Error(event.error);
      if (event.piece) byId("continuation").append(event.piece);
      if (event.done) byId("write-state").textContent = event.done.ended ? "It ended by itself." : "It was cut off at the longest length.";
    }
  } catch (error) {
    byId("write-state").textContent = "Stopped.";
    throw error;
  } finally {
    byId("stop").disabled = true;
  }
}

function setUpGenerate(health) {
  const pieces = piecesOf(health.example).map((piece) => piece.text);
  addTexts("generate", health.reads, pieces.slice(0, pieces.length / 2).join("").trimEnd());
  byId("stop").addEventListener("click", () => writing.controller?.abort());
  byId("sample").addEventListener("change", () => (byId("temperature").disabled = !byId("sample").checked));
  onSubmit("generate", () => generate(!health.task));
}

// Predict

function spelled(value) {
  if (Array.isArray(value)) return value.map(spelled).join(value.some((one) => typeof one === "object") ? "\n" : " ");
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
}

// The tags of words; of each part, if a model has several taggers.
function tagged(tokens, tags) {
  if (Array.isArray(tags)) return tokens.map((token, i) => `${token} (${tags[i]})`).join(" ");
  return Object.entries(tags).map(([part, own]) => `${part}: ${tagged(tokens, own)}`).join("\n");
}

async function predict() {
  const answer = await send("/predict", { text: textsOf("predict") });
  const { prediction, probabilities, tokens, ...others } = await answer.json();
  byId("predicted").hidden = false;
  byId("prediction").textContent = tokens ? tagged(tokens, prediction) : spelled(prediction);
  const classes = Object.entries(probabilities || {}).sort((a, b) => b[1] - a[1]);
  byId("classes").replaceChildren(...classes.map(([label, share]) => bar(label, share)));
  byId("details").replaceChildren(
    ...Object.entries(others).flatMap(([name, value]) => [
      element("dt", { textContent: name }),
      element("dd", { textContent: spelled(value) }),
    ]),
  );
}

function setUpPredict(reads) {
  addTexts("predict", reads, "A text to classify.");
  onSubmit("predict", predict);
}

// Beginning

async function begin() {
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem("token", byId("token").value.trim());
    byId("token-form").hidden = true;
    showError("");
  });
  const answer = await fetch("/health").catch(() => null);
  if (!answer?.ok) {
    byId("model").textContent = "no connection";
    showError("The server does not answer: is it still running?");
    return;
  }
  const health = await answer.json();
  byId("model").textContent = health.model;
  document.title = `${health.model} - unicloze`;
  byId("fill-text").value = byId("score-text").value = health.example;
  setUpFill(health.abilities);
  setUpScore();
  setUpGenerate(health);
  setUpPredict(health.reads);
  setUpTabs(health.offers);
  document.body.dataset.ready = "true";
}

begin();
