/* The theme makes a landmark of each copy button's place. There are dozens of them on a page, and none leads anywhere. */

new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const added of addedNodes)
      if (added.matches?.(".md-code__nav")) added.setAttribute("role", "presentation")
}).observe(document.documentElement, { childList: true, subtree: true })
