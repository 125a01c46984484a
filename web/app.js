/** The page of an exported site: the model runs in the browser itself. */

import { BrowserEngine } from "./page/browser.js";
import { startPage } from "./page/page.js";

startPage(new BrowserEngine(new URLSearchParams(location.search)));
