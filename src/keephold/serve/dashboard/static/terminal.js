// A terminal in the page: shows its screen, and lets the user take it over.
//
// The server sends the screen as escaped HTML (/screens/…). Keys are sent in numbered requests, one after the other, so
// that they arrive in order. A hidden page has no stream, unless its user drives.

const NAMES = {
  Enter: "ENTER", Tab: "TAB", Escape: "ESC", Backspace: "BACKSPACE", Delete: "DELETE", Insert: "INSERT",
  ArrowUp: "UP", ArrowDown: "DOWN", ArrowLeft: "LEFT", ArrowRight: "RIGHT", Home: "HOME", End: "END",
  PageUp: "PAGEUP", PageDown: "PAGEDOWN",
};
const RETRY = 2000;
const TRIES = 5;

// Return the name of a key that is not text (see `tools/terminal/keys.py`); null for text and keys of the browser.
export function nameOf(event) {
  if (event.metaKey || event.isComposing || event.keyCode === 229) return null;
  const { key, ctrlKey: ctrl, altKey: alt } = event;
  if (event.getModifierState("AltGraph")) return null; // it types a character
  const special = NAMES[key] ?? (/^F([1-9]|1[0-2])$/.test(key) ? key : null);
  if (special) {
    if (special === "TAB" && event.shiftKey) return "S-TAB";
    return alt ? `M-${special}` : special;
  }
  if (key.length !== 1) return null;
  if (ctrl) {
    if (key === " " || key === "@") return "C-SPACE";
    if (key.toLowerCase() === "v") return null; // pastes
    return /^[a-zA-Z[\\\]^_]$/.test(key) ? `C-${key.toLowerCase()}` : null;
  }
  return alt ? `M-${key}` : null;
}

class LiveTerminal extends HTMLElement {
  connectedCallback() {
    this.onSeen ??= () => this.seen();
    document.addEventListener("visibilitychange", this.onSeen);
    if (!this.parts) this.setUp();
    this.seen();
  }

  setUp() {
    const part = (name) => this.querySelector(`[data-${name}]`);
    this.parts = Object.fromEntries(["title", "who", "drive", "back", "frame", "screen", "keys", "soft"].map((name) => [name, part(name)]));
    this.base = `/screens/${encodeURIComponent(this.dataset.uid)}`;
    this.typed = 0;
    this.queue = [];
    this.parts.drive.addEventListener("click", () => this.drive());
    this.parts.back.addEventListener("click", () => this.handBack());
    this.hearKeys();
  }

  disconnectedCallback() {
    document.removeEventListener("visibilitychange", this.onSeen);
    this.close();
  }

  // Showing

  seen() {
    if (!document.hidden) this.open();
    else if (!this.driver) this.close();
  }

  open() {
    if (this.source || this.over) return;
    this.source = new EventSource(this.base);
    this.source.addEventListener("hello", ({ data }) => {
      this.stream = JSON.parse(data).stream;
      this.lose(); // the stream that drove it has ended
      this.greeted?.(this.stream);
    });
    this.source.addEventListener("screen", ({ data }) => this.show(JSON.parse(data)));
    this.source.addEventListener("end", ({ data }) => {
      const { why } = JSON.parse(data);
      if (why && this.driver) this.told = why; // what was typed may be lost
      if (why) this.again(); // lost, or run by another process: it may come back
      else this.end();
    });
    this.source.onerror = () => {
      if (this.source?.readyState === EventSource.CLOSED) this.again(); // refused: it may not run yet
    };
  }

  again() {
    this.close();
    setTimeout(() => this.isConnected && this.seen(), RETRY);
  }

  close() {
    this.source?.close();
    this.source = this.stream = null;
    this.lose();
  }

  end() {
    this.over = true;
    this.close();
    this.say("It has ended");
    this.parts.drive.hidden = true;
  }

  show(screen) {
    const { title, screen: pre, frame, drive } = this.parts;
    if (pre.innerHTML !== screen.html) pre.innerHTML = screen.html;
    title.textContent = screen.title || title.textContent;
    frame.setAttribute("aria-label", frame.getAttribute("aria-label").replace(/\d+ rows of \d+$/, `${screen.rows} rows of ${screen.cols}`));
    if (this.driver && !screen.mine && screen.taken >= this.taken) this.lose(); // else it was sent before we took over
    if (!screen.driver) this.left = null;
    const driven = Boolean(screen.driver) && screen.taken !== this.left; // else it is us, and we are leaving
    this.classList.toggle("terminal-driven", driven);
    drive.hidden = Boolean(this.driver);
    drive.disabled = driven;
    this.say(this.driver ? "You drive" : driven ? "Somebody else drives" : this.told ?? "");
  }

  say(text) {
    if (this.parts.who.textContent !== text) this.parts.who.textContent = text;
  }

  // Driving

  async drive() {
    this.parts.drive.disabled = true;
    try {
      const stream = this.stream ?? (await new Promise((resolve) => { this.greeted = resolve; }));
      const answer = await this.post("drive", { stream, ...this.fitting() });
      if (answer.error) {
        this.say(answer.error.message);
        return;
      }
      this.driver = answer.driver;
      this.taken = answer.taken;
      this.told = null;
      this.typed = 0;
      this.queue = [];
    } catch {
      this.say("The server does not answer");
      return;
    } finally {
      this.parts.drive.disabled = false;
    }
    this.classList.add("terminal-mine");
    for (const name of ["back", "keys", "soft"]) this.parts[name].hidden = false;
    this.parts.drive.hidden = true;
    this.say("You drive");
    this.parts.keys.focus({ preventScroll: true });
    this.sizes = new ResizeObserver(() => this.resizeSoon());
    this.sizes.observe(this.parts.frame);
  }

  async handBack() {
    const { driver } = this;
    this.left = this.taken;
    this.lose();
    this.parts.drive.focus();
    if (driver) await this.post("back", { driver }).catch(() => {});
  }

  // Stop driving.
  lose() {
    if (!this.driver) return;
    this.driver = null;
    this.queue = [];
    this.sizes?.disconnect();
    this.classList.remove("terminal-mine");
    for (const name of ["back", "keys", "soft"]) this.parts[name].hidden = true;
    this.parts.drive.hidden = this.parts.drive.disabled = false;
  }

  // Return the rows and columns that fit.
  fitting() {
    const probe = document.createElement("span");
    probe.textContent = "M".repeat(20);
    this.parts.screen.append(probe);
    const { width, height } = probe.getBoundingClientRect();
    probe.remove();
    const style = getComputedStyle(this.parts.screen);
    const line = parseFloat(style.lineHeight) || height;
    const room = this.parts.frame.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    const cols = Math.max(20, Math.min(240, Math.floor(room / (width / 20))));
    const rows = Math.max(10, Math.min(50, Math.floor((window.innerHeight * 0.65) / line)));
    return { rows, cols };
  }

  resizeSoon() {
    clearTimeout(this.resizing);
    this.resizing = setTimeout(() => {
      const size = this.fitting();
      const told = `${size.rows} ${size.cols}`;
      if (!this.driver || told === this.size) return;
      this.size = told;
      this.post("resize", { driver: this.driver, ...size }).catch(() => {});
    }, 250);
  }

  // Keys

  hearKeys() {
    const { keys, frame, soft } = this.parts;
    frame.addEventListener("click", () => {
      if (this.driver && !String(getSelection())) keys.focus({ preventScroll: true });
    });
    keys.addEventListener("keydown", (event) => {
      if (event.ctrlKey && event.key === "]") {
        event.preventDefault();
        this.handBack();
        return;
      }
      const name = nameOf(event);
      if (name === null) return;
      event.preventDefault();
      this.send({ key: name });
    });
    keys.addEventListener("beforeinput", (event) => {
      // On-screen keyboards press no keys: they edit the text.
      const name = { deleteContentBackward: "BACKSPACE", insertLineBreak: "ENTER", insertParagraph: "ENTER" }[event.inputType];
      if (!name || event.isComposing || (name === "BACKSPACE" && keys.value)) return;
      event.preventDefault();
      this.send({ key: name });
    });
    keys.addEventListener("input", (event) => {
      if (!event.isComposing) this.sendText();
    });
    keys.addEventListener("compositionend", () => this.sendText());
    keys.addEventListener("paste", (event) => {
      event.preventDefault();
      const text = event.clipboardData.getData("text/plain");
      if (text) this.send({ paste: text });
    });
    soft.addEventListener("click", ({ target }) => {
      const key = target.closest("button")?.dataset.keyName;
      if (!key) return;
      this.send({ key });
      keys.focus({ preventScroll: true });
    });
  }

  sendText() {
    const { value } = this.parts.keys;
    this.parts.keys.value = "";
    if (value) this.send({ data: value });
  }

  send(what) {
    if (!this.driver) return;
    const last = this.queue.at(-1);
    if (what.data && last?.data && this.queue.length > 1) last.data += what.data; // the first may be on its way
    else this.queue.push(what);
    if (!this.sending) this.sendAll();
  }

  async sendAll() {
    this.sending = true;
    const { driver } = this;
    for (let tries = 0; this.queue.length && this.driver === driver; ) {
      try {
        const answer = await this.post("type", { driver, seq: this.typed + 1, ...this.queue[0] });
        if (this.driver !== driver) break;
        if (answer.error) this.say(answer.error.message);
        else this.typed += 1;
        this.queue.shift();
        tries = 0;
      } catch {
        tries += 1;
        if (tries > TRIES) {
          this.lose();
          this.say("The server does not answer; handed back");
          break;
        }
        await new Promise((resolve) => { setTimeout(resolve, 200 * tries); });
      }
    }
    this.sending = false;
  }

  async post(action, body) {
    const response = await fetch(`${this.base}/${action}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    return response.json();
  }
}

customElements.define("live-terminal", LiveTerminal);
