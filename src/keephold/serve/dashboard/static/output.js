// A handle's live output. The server renders the output so far; this script appends to it.
//
// The page keeps a bounded end of the output. It does not scroll while the user reads further up.

const LINES = 5000;
const CHARACTERS = 2_000_000;
const RETRY = 2000;

class LiveOutput extends HTMLElement {
  connectedCallback() {
    this.box = this.querySelector("pre");
    this.cut = this.querySelector("[data-cut]");
    this.pieces = []; // { node, lines } of the shown output, oldest first
    this.lines = 0;
    this.characters = 0;
    for (const node of [...this.box.childNodes]) this.count(node);
    if (this.hasAttribute("data-end")) this.toEnd();
    this.onSeen = () => this.seen();
    document.addEventListener("visibilitychange", this.onSeen);
    this.seen();
  }

  disconnectedCallback() {
    document.removeEventListener("visibilitychange", this.onSeen);
    this.close();
  }

  seen() {
    if (document.hidden) this.close();
    else this.open();
  }

  open() {
    const address = this.dataset.follow;
    if (!address || this.source) return;
    const url = new URL(address, location.href);
    if (this.offset !== undefined) url.searchParams.set("offset", this.offset);
    this.source = new EventSource(url);
    this.source.addEventListener("output", ({ data }) => {
      const told = JSON.parse(data);
      this.offset = told.offset;
      this.add(told.text);
    });
    this.source.addEventListener("gap", ({ data }) => {
      const told = JSON.parse(data);
      this.offset = told.offset;
      this.add(`\n[${told.missing.toLocaleString("en")} bytes are gone]\n`);
    });
    for (const last of ["end", "refused"]) {
      this.source.addEventListener(last, () => {
        this.close();
        delete this.dataset.follow;
      });
    }
    this.source.onerror = () => {
      if (this.source?.readyState !== EventSource.CLOSED) return;
      this.source = null;
      setTimeout(() => this.isConnected && this.seen(), RETRY);
    };
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  // Text that arrives within one frame is added together.
  add(text) {
    this.waiting = (this.waiting ?? "") + text;
    this.drawing ??= requestAnimationFrame(() => {
      const added = this.waiting;
      const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 24;
      this.waiting = "";
      this.drawing = null;
      const node = document.createTextNode(added.slice(-CHARACTERS));
      this.box.append(node);
      this.count(node);
      this.bound();
      if (atEnd) this.toEnd();
    });
  }

  count(node) {
    const text = node.textContent;
    let lines = 0;
    for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines += 1;
    this.pieces.push({ node, lines, characters: text.length });
    this.lines += lines;
    this.characters += text.length;
  }

  bound() {
    while (this.pieces.length > 1 && (this.lines > LINES || this.characters > CHARACTERS)) {
      const { node, lines, characters } = this.pieces.shift();
      node.remove();
      this.lines -= lines;
      this.characters -= characters;
      if (this.cut) this.cut.hidden = false;
    }
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
  }
}

customElements.define("live-output", LiveOutput);
