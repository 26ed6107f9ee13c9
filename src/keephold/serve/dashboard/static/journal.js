// A long journal. The server renders its newest entries; each earlier block is loaded when it comes near the screen, and
// emptied when it is far away, so that the page stays small however many entries there are.

const NEAR = "1500px";

class StepBlock extends HTMLElement {
  connectedCallback() {
    this.height ??= `${Number(this.dataset.lines) * 2.25}rem`;
    this.size(this.height);
    this.watcher = watcherOf(this.closest(".journal"));
    this.watcher.observe(this);
  }

  disconnectedCallback() {
    this.watcher.unobserve(this);
    this.loading?.abort();
  }

  size(height) {
    this.style.minHeight = height;
  }

  async load() {
    if (this.loading) return;
    this.loading = new AbortController();
    try {
      const response = await fetch(this.dataset.src, { signal: this.loading.signal });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (response.ok && this.isConnected) this.replaceChildren(...page.body.children);
    } catch {
      this.loading = null; // too far away by now, or the server does not answer: it is loaded when it is near again
    }
  }

  empty() {
    this.loading?.abort();
    this.loading = null;
    if (this.querySelector("details[open]") || this.contains(document.activeElement)) return; // somebody reads it
    if (this.firstChild) this.size(`${this.offsetHeight}px`);
    this.replaceChildren();
  }
}

const watchers = new WeakMap();

function watcherOf(root) {
  if (!watchers.has(root)) watchers.set(root, new IntersectionObserver(moved, { root, rootMargin: NEAR }));
  return watchers.get(root);
}

function moved(entries) {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) target.load();
    else target.empty();
  }
}

customElements.define("step-block", StepBlock);
