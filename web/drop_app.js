/** The page that opens GGUF files; it has the name app.js in its site. */

import { DropEngine } from "./drop/engine.js";
import { startPage } from "./page/page.js";

startPage(new DropEngine(new URLSearchParams(location.search)));
