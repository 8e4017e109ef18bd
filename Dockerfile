# The server and its command as a container image.
#
#   docker build -t gdpcache --build-arg COMMIT="$(git describe --always --dirty --abbrev=12)" .
#   docker build -t gdpcache:cuda --build-arg COMMIT="$(git describe --always --dirty --abbrev=12)" --build-arg CUDA=ON \
#     --build-arg BUILD_IMAGE=docker.io/nvidia/cuda:12.8.1-devel-ubuntu24.04 \
#     --build-arg RUNTIME_IMAGE=docker.io/library/ubuntu:24.04 .
#
# Bases: Debian 12 or Ubuntu 24.04, the same release for both; the one of the runtime needs nothing of CUDA's. A tag may
# move: where builds must repeat, add the digest, --build-arg BUILD_IMAGE=docker.io/library/debian:12.12-slim@sha256:...
ARG BUILD_IMAGE=docker.io/library/debian:12.12-slim
ARG RUNTIME_IMAGE=docker.io/library/debian:12.12-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# Alone, so that a change of the sources does not install everything again.
COPY dev .
RUN ./dev setup
COPY . .
# Where NVIDIA's packages and images put the toolkit.
ENV PATH=/usr/local/cuda/bin:$PATH LANG=C.UTF-8
ARG CUDA=OFF
# Of the source, for --version and the metrics; the context has no .git to ask.
ARG COMMIT=unknown
RUN --mount=type=cache,target=/root/.cache/ccache \
    cmake --preset release -D GDPCACHE_CUDA=${CUDA} -D GDPCACHE_COMMIT=${COMMIT} \
      -D GDPCACHE_BUILD_TESTS=OFF -D GDPCACHE_BUILD_BENCHMARKS=OFF \
 && cmake --build build/release --target gdpcached gdpcache \
 && install -D -s -t /image/usr/bin build/release/server/gdpcached build/release/client/gdpcache \
 && install -D -m 0644 -t /image/etc/gdpcache deploy/container/gdpcached.textproto \
 && deploy/container/runtime_packages.sh /image/usr/bin/* > /runtime-packages
# The labels tell the truth.
ARG VERSION=0.1.0
RUN test "$(/image/usr/bin/gdpcached --version | head -n 1)" = "gdpcached ${VERSION}"

FROM ${RUNTIME_IMAGE}
COPY --from=build /runtime-packages /tmp/runtime-packages
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(cat /tmp/runtime-packages) \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /tmp/runtime-packages \
 && useradd --no-create-home --uid 10001 --user-group --home-dir /nonexistent --shell /usr/sbin/nologin gdpcache \
 && install -d -o gdpcache -g gdpcache -m 0700 /run/gdpcache /var/lib/gdpcache
COPY --from=build /image /
# Read by the NVIDIA container runtime, where there is one.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
# The socket, and the snapshots of a disk tier: all that is ever written, so the root may be read-only.
VOLUME ["/run/gdpcache", "/var/lib/gdpcache"]
EXPOSE 7411
STOPSIGNAL SIGTERM
# Alive, not ready: whatever restarts containers that are unhealthy must not cut a drain short, with calls running and
# snapshots to be written. A server listens when it is ready, so until then this fails, too.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/bin/gdpcache", "health", "--alive", "--server", "unix:/run/gdpcache/gdpcache.sock"]
# The server starts no processes and handles SIGTERM itself: it needs no init.
ENTRYPOINT ["/usr/bin/gdpcached", "--config=/etc/gdpcache/gdpcached.textproto"]
ARG RUNTIME_IMAGE
ARG COMMIT=unknown
ARG VERSION=0.1.0
# Where the source can be had, and its licences as an SPDX expression: whoever publishes the image says so.
ARG SOURCE=""
ARG LICENSES=NOASSERTION
LABEL org.opencontainers.image.title="gdpcache" \
      org.opencontainers.image.description="Recurrent state cache of Gated Delta Product language models" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="${LICENSES}" \
      org.opencontainers.image.base.name="${RUNTIME_IMAGE}"
