// Runs before the app. The address says what is on the screen, and Streamlit makes a history entry of each change to it:
// Back would lead from a page to the same page. So on one page an entry is replaced; only another page adds one.
(() => {
  const push = history.pushState;
  history.pushState = function (state, title, url) {
    const isSamePage = url !== null && url !== undefined && new URL(url, location.href).pathname === location.pathname;
    return isSamePage ? history.replaceState(state, title, url) : push.call(history, state, title, url);
  };
})();
