# Quayside as a container: docker build -t quayside . && docker run -p 3444:3444 -v quayside:/data quayside
#
# BASE must contain Node 24.15 or later and npm. The server's own files are read-only JavaScript; all data is in /data.
ARG BASE=node:24-bookworm-slim

FROM ${BASE} AS build
WORKDIR /build
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts --no-audit --no-fund
COPY scripts scripts
COPY tsconfig.json tsconfig.build.json vite.config.ts ./
COPY src src
# Removes the Node of the npm package, which is for machines with an older one: the image has its own.
RUN npm run build \
  && npm run build:console \
  && npm prune --omit=dev --ignore-scripts --no-audit --no-fund \
  && rm -rf node_modules/node-* node_modules/.bin

FROM ${BASE}
ENV NODE_ENV=production \
    QUAYSIDE_DATA_DIR=/data \
    QUAYSIDE_HTTP__HOST=0.0.0.0 \
    QUAYSIDE_HTTP__INSECURE=true
WORKDIR /opt/quayside
COPY --from=build /build/package.json ./
COPY --from=build /build/node_modules node_modules
COPY --from=build /build/dist dist
RUN install -d -m 0700 -o 10001 -g 10001 /data
USER 10001:10001
VOLUME /data
EXPOSE 3444
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
  CMD ["node", "-e", "fetch('http://127.0.0.1:3444/livez').then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]
ENTRYPOINT ["node", "--max-semi-space-size=8", "--no-allocation-site-pretenuring", "dist/main.js"]
