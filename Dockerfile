# The base can be replaced by any Debian-like image with Python >= 3.11. No CUDA base: torch's wheels bring the libraries.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# Given as build arguments, pip's own variables choose another index, e.g. torch's for processors only (a smaller image).
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /build
COPY requirements.txt .
RUN python3 -m venv /venv \
    && /venv/bin/pip install --no-cache-dir "$(grep '^torch==' requirements.txt)" \
    && /venv/bin/pip install --no-cache-dir -r requirements.txt

FROM ${BASE}
# Spaces runs containers as user 1000.
RUN useradd --create-home --uid 1000 user
COPY --from=build /venv /venv
WORKDIR /home/user/app
COPY --chown=1000:1000 . .
USER 1000
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PLAYGROUND_HOST=0.0.0.0 \
    PLAYGROUND_PORT=7860
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=90s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['PLAYGROUND_PORT']}/readyz\", timeout=4)"]
CMD ["python", "app.py"]
