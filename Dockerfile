# The image is one static binary: make build first. Certificates are for
# registries that speak TLS; mount the host's over /etc/ssl/certs.
FROM scratch
COPY bin/graze /usr/bin/graze
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/graze"]
