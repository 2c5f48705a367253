"use strict";
/* The address holds what is asked; the answer follows it. */
(() => {
  const form = document.getElementById("asked"), second = document.getElementById("second"), two = document.getElementById("two");
  const status = document.getElementById("status"), answer = document.getElementById("answer"), upload = document.getElementById("upload"), downloads = document.getElementById("downloads");
  const fields = [...form.querySelectorAll("[name]")], extra = new Map();
  let timer = 0, asked = null;

  const say = (text, wrong) => {
    status.textContent = text;
    status.className = wrong ? "error" : "";
    downloads.hidden = Boolean(wrong);
    const named = wrong && second.hidden ? /^\w+(?=[:=])/.exec(text) : null;  // with two plans it does not say whose
    for (const one of fields) if (named && one.name === named[0]) one.setAttribute("aria-invalid", "true"); else one.removeAttribute("aria-invalid");
  };
  const field = (name) => fields.find((one) => one.name === name);

  function query() {
    const found = new URLSearchParams();
    for (const one of fields) if (one.value.trim() && (!one.name.startsWith("b.") || !second.hidden)) found.set(one.name, one.value.trim());
    for (const [name, value] of extra) {
      if (name === "plan") for (const one of [...found.keys()]) if (!one.startsWith("b.")) found.delete(one);
      found.set(name, value);
    }
    return found;
  }

  function fill(parameters) {
    extra.clear();
    second.hidden = ![...parameters.keys()].some((name) => name.startsWith("b."));
    two.textContent = second.hidden ? "Compare with another" : "Only one plan";
    for (const one of fields) {
      let value = parameters.get(one.name) || "";
      if (one.tagName === "SELECT" && one.options[0].value === "" && one.options[0].text === value) value = "";  // the default
      if (one.tagName === "SELECT" && value && ![...one.options].some((option) => option.value === value)) one.add(new Option(value.startsWith("upload:") ? "uploaded config" : value, value));
      if (value || one.name.replace("b.", "") !== "model") one.value = value;
      const group = one.closest("details");
      if (value && group) group.open = true;
    }
    for (const [name, value] of parameters) if (value && !field(name)) extra.set(name, value);  // the server refuses what it does not know
    slide();
  }

  function slide() {
    for (const range of form.querySelectorAll("[data-for]")) range.value = Math.log2(Number(field(range.dataset.for).value) || 1);
  }

  async function* lines(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      text += value || "";
      const whole = text.split("\n");
      text = whole.pop();
      for (const line of whole) yield JSON.parse(line);
      if (done) { if (text) yield JSON.parse(text); return; }
    }
  }

  async function ask() {
    const parameters = query().toString();
    history.replaceState(null, "", `?${parameters}`);
    for (const link of document.querySelectorAll("[data-download]")) link.href = `${link.getAttribute("href").split("?")[0]}?${parameters}`;
    if (asked) asked.abort();
    asked = new AbortController();
    const mine = asked, begin = performance.now();
    say("planning ...");
    document.querySelector("[download='compare.html']").hidden = second.hidden;
    answer.dataset.old = "";
    try {
      const response = await fetch(`answer?${parameters}&live=1`, { signal: mine.signal });
      let open = true;
      for await (const found of lines(response)) {
        if (mine !== asked) return;
        if (found.error) { say(found.error, true); return; }
        open = found.open;
        answer.innerHTML = found.html;  // made by the server, which escapes every text; its policy lets no script in
        delete answer.dataset.old;
        window.autoshard.draw(answer, found.data);
        document.title = `${answer.querySelector("h1")?.textContent || "autoshard"}: ${found.title}`;
        const took = `${((performance.now() - begin) / 1000).toFixed(2)} s: ${found.title}`;
        say(!open ? `answered in ${took}` : found.proven ? `best so far, ${found.proven}, after ${took}; still looking ...` : `planned in ${took}; asking why ...`);
        downloads.hidden = open && Boolean(found.proven);  // they wait for the answer
      }
      if (open) throw new Error("the answer broke off");
    } catch (error) {
      if (error.name !== "AbortError") say("the server does not answer; is it still running?", true);
    }
  }

  const soon = (wait) => { clearTimeout(timer); timer = setTimeout(ask, wait); };

  form.addEventListener("submit", (event) => { event.preventDefault(); soon(0); });
  form.addEventListener("input", (event) => {
    if (event.target === upload) return;
    if (event.target.dataset.for) field(event.target.dataset.for).value = 2 ** Number(event.target.value);
    else slide();
    const stays = event.target.name && event.target.name.startsWith("b.") ? ["plan", "why"] : ["b.plan", "b.why"];
    for (const name of [...extra.keys()]) if (!stays.includes(name)) extra.delete(name);
    soon(200);
  });
  two.addEventListener("click", () => {
    const parameters = query();
    if (second.hidden) for (const [name, value] of [...parameters]) parameters.set(`b.${name}`, value);
    else for (const name of [...parameters.keys()]) if (name.startsWith("b.")) parameters.delete(name);
    fill(parameters);
    soon(0);
  });
  answer.addEventListener("click", (event) => {
    const link = event.target.closest("[data-why]");
    if (!link) return;
    event.preventDefault();
    extra.set("why", link.dataset.why);
    soon(0);
  });
  upload.addEventListener("change", async () => {
    const [file] = upload.files;
    if (!file) return;
    say("uploading ...");
    try {
      const response = await fetch("upload", { method: "POST", body: file, headers: { "Content-Type": "application/json" } });
      const found = await response.json();
      if (!response.ok) { say(found.error, true); return; }
      const parameters = query();
      for (const name of ["plan", "why"]) parameters.delete(name);
      parameters.set(found.kind, found.id);
      fill(parameters);
      soon(0);
    } catch { say("the upload failed; is the server still running?", true); }
    upload.value = "";
  });
  addEventListener("popstate", () => { fill(new URLSearchParams(location.search)); soon(0); });
  fill(new URLSearchParams(location.search));
  ask();
})();
