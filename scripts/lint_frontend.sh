#!/bin/sh
# ESLint over the page's scripts, where Node is installed and its packages are there or can be fetched.
set -u
if [ ! -f package.json ]; then
    echo "ESLint: no package.json, nothing to check."
    exit 0
fi
if ! command -v npm >/dev/null; then
    echo "ESLint: Node is not installed, skipped."
    exit 0
fi
if [ ! -x node_modules/.bin/eslint ] && ! timeout 180 npm ci --no-audit --no-fund --silent; then
    echo "ESLint: its packages could not be fetched, skipped."
    exit 0
fi
exec npx --no-install eslint playground/web/static
