/* The theme makes a landmark of each copy button's place. There are dozens of them on a page, and none leads anywhere.
   And it takes a button's title, which is its only name, away while it shows the title. */

new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const added of addedNodes)
      if (added.matches?.(".md-code__nav")) {
        added.setAttribute("role", "presentation")
        added.querySelectorAll("[title]").forEach((button) => button.setAttribute("aria-label", button.title))
      }
}).observe(document.documentElement, { childList: true, subtree: true })
