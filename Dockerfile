# The server and its command as a container image.
#
#   docker build -t gdpcache .
#   docker build -t gdpcache:cuda --build-arg CUDA=ON \
#     --build-arg BUILD_IMAGE=nvidia/cuda:12.8.1-devel-ubuntu24.04 --build-arg RUNTIME_IMAGE=ubuntu:24.04 .
#
# Debian 12 or Ubuntu 24.04 bases, the same release for both; pin them by digest where builds must repeat.
ARG BUILD_IMAGE=docker.io/library/debian:12-slim
ARG RUNTIME_IMAGE=docker.io/library/debian:12-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# Alone, so that a change of the sources does not install everything again.
COPY dev .
RUN ./dev setup
COPY . .
ARG CUDA=OFF
RUN cmake --preset release -D GDPCACHE_CUDA=${CUDA} -D GDPCACHE_BUILD_TESTS=OFF -D GDPCACHE_BUILD_BENCHMARKS=OFF \
 && cmake --build build/release --target gdpcached gdpcache \
 && install -D -s -t /image/usr/bin build/release/server/gdpcached build/release/client/gdpcache \
 && install -D -m 0644 -t /image/etc/gdpcache deploy/container/gdpcached.textproto \
 && deploy/container/runtime_packages.sh /image/usr/bin/* > /runtime-packages

FROM ${RUNTIME_IMAGE}
LABEL org.opencontainers.image.title="gdpcache" \
      org.opencontainers.image.description="Recurrent state cache of Gated Delta Product language models" \
      org.opencontainers.image.documentation="README.md"
COPY --from=build /runtime-packages /tmp/runtime-packages
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $(cat /tmp/runtime-packages) \
 && rm -rf /var/lib/apt/lists/* /tmp/runtime-packages \
 && useradd --system --uid 10001 --user-group --home-dir /nonexistent --shell /usr/sbin/nologin gdpcache \
 && install -d -o gdpcache -g gdpcache -m 0700 /run/gdpcache /var/lib/gdpcache
COPY --from=build /image /
# Read by the NVIDIA container runtime, where there is one.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
# The socket, and the snapshots of a disk tier: all that is ever written, so the root may be read-only.
VOLUME ["/run/gdpcache", "/var/lib/gdpcache"]
EXPOSE 7411
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/bin/gdpcache", "health", "--server", "unix:/run/gdpcache/gdpcache.sock"]
# The server starts no processes and handles SIGTERM itself: it needs no init.
ENTRYPOINT ["/usr/bin/gdpcached", "--config=/etc/gdpcache/gdpcached.textproto"]
