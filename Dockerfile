# unicloze with torch. The default index's build of torch has CUDA; TORCH_INDEX names an index of smaller CPU builds.
FROM python:3.12-slim-bookworm AS build
ARG TORCH_INDEX=""
WORKDIR /source
RUN python -m venv /opt/unicloze
COPY constraints.txt ./
RUN /opt/unicloze/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/unicloze/bin/pip install --no-cache-dir --constraint constraints.txt ".[hf,metrics,serve]"

FROM python:3.12-slim-bookworm
# A C compiler makes dropout on a CPU faster.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 unicloze \
    && install --directory --owner unicloze /workspace
COPY --from=build /opt/unicloze /opt/unicloze
ENV PATH=/opt/unicloze/bin:$PATH PYTHONUNBUFFERED=1
USER unicloze
WORKDIR /workspace
ENTRYPOINT ["unicloze"]
CMD ["--help"]
