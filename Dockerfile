# The image of `feedsvc serve`. Everything that is installed is locked with its hash; nothing is compiled, and no package
# index is named here: one of your own comes as a secret of the build, pip.conf.
#
# Rules for editing: both stages start from the same image, because the virtual environment holds the path of its
# interpreter. The entry point stays in exec form: PID 1 is the server, and SIGTERM begins its drain.
ARG PYTHON=3.13-slim-trixie

FROM python:${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# Dependencies first: they change less often than the program.
COPY requirements.lock requirements-build.lock ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python -m venv /opt/feedsvc \
    && /opt/feedsvc/bin/pip install --require-hashes --only-binary :all: -r requirements.lock \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes --only-binary :all: -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY feedsvc ./feedsvc
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/feedsvc/bin/pip install --no-deps --no-index --find-links /dist feedsvc \
    && /opt/feedsvc/bin/python -m compileall -q /opt/feedsvc/lib \
    && /opt/feedsvc/bin/pip uninstall --yes --quiet pip

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="feedsvc" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/feedsvc /opt/feedsvc
ENV PATH=/opt/feedsvc/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 FEEDSVC_HOST=0.0.0.0
# A number, so that runAsNonRoot can be checked. It owns no file of the image.
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["feedsvc"]
CMD ["serve"]
