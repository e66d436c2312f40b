#!/bin/sh
# A Chromium for the browser tests: Playwright's own where it can be fetched, else the system's, else Debian's package.
# Usage: ensure_browser.sh BIN, where BIN holds the playwright command.
set -u
bin=$1

system_chromium() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

if timeout 180 "$bin/playwright" install chromium >/dev/null 2>&1; then
    echo "Browser: Playwright's Chromium."
    # Its shared libraries come from the system; without root they have to be there already.
    [ "$(id -u)" -ne 0 ] || timeout 300 "$bin/playwright" install-deps chromium >/dev/null 2>&1 || true
elif path=$(system_chromium); then
    echo "Browser: $path (Playwright's own could not be fetched)."
elif [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Browser: installing Debian's Chromium package."
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium fonts-dejavu-core
else
    echo "No Chromium found and none could be installed: browser tests will be skipped." >&2
    echo "Install the chromium package, then run make test again." >&2
    exit 1
fi
