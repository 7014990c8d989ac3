#!/bin/sh
# Pins each base image of a Dockerfile to the current digest of its tag: digests.sh DOCKERFILE
# Needs skopeo and reachable registries; changes the file only after all have answered.
set -eu
file=$1
changed=$(mktemp)
trap 'rm -f "$changed"' EXIT
cp "$file" "$changed"
sed -nE 's/^ARG [A-Z]+_IMAGE=([^@]+)(@.*)?$/\1/p' "$file" | while read -r image; do
    case "$image" in
    *.*/* | localhost*/*) source=$image ;;
    */*) source=docker.io/$image ;;
    *) source=docker.io/library/$image ;;
    esac
    digest=$(skopeo inspect --no-tags ${SKOPEO_FLAGS-} --format '{{.Digest}}' "docker://$source")
    sed -i -E "s#^(ARG [A-Z]+_IMAGE=$image)(@.*)?\$#\1@$digest#" "$changed"
    echo "digests: $image is $digest"
done
cat "$changed" >"$file"
