package registry

import (
	"net/http"
	"strings"
)

// Limits of the spec's names, in bytes.
const (
	maxName = 255
	maxTag  = 128
)

// A route is what a request's path says.
type route struct {
	kind Kind
	repo string // checked; empty with KindBase, KindCatalog and KindOther

	// ref is what follows the kind: a digest with KindBlob and KindReferrers, a
	// tag or a digest with KindManifest, the id with KindUpload, empty where an
	// upload starts. The handlers check it.
	ref string
}

// parseRoute takes the path of a request apart. Repository names may hold
// components such as "blobs" or "tags", so it works from the right. On an error
// the route still has the kind.
func parseRoute(path string) (route, error) {
	rest, ok := strings.CutPrefix(path, "/v2/")
	switch {
	case path == "/v2" || ok && rest == "":
		return route{kind: KindBase}, nil
	case !ok:
		return route{kind: KindOther}, errNoEndpoint
	case rest == "_catalog":
		return route{kind: KindCatalog}, nil
	}
	head, ref := cutLast(rest)
	repo, verb := cutLast(head)
	rt := route{kind: KindOther, repo: repo, ref: ref}
	switch verb {
	case "manifests":
		rt.kind = KindManifest
	case "referrers":
		rt.kind = KindReferrers
	case "tags":
		if ref == "list" {
			rt.kind, rt.ref = KindTags, ""
		}
	case "blobs":
		rt.kind = KindBlob
		if ref == "uploads" {
			rt.kind, rt.ref = KindUpload, ""
		}
	case "uploads":
		if parent, last := cutLast(repo); last == "blobs" {
			rt.kind, rt.repo = KindUpload, parent
		}
	}
	if rt.kind == KindOther {
		return route{kind: KindOther}, errNoEndpoint
	}
	if !validName(rt.repo) {
		return route{kind: rt.kind}, &apiError{
			status: http.StatusBadRequest, code: codeNameInvalid,
			message: "not a valid repository name", detail: cap80(rt.repo),
		}
	}
	return rt, nil
}

// cutLast splits s at its last slash.
func cutLast(s string) (before, after string) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return "", s
	}
	return s[:i], s[i+1:]
}

// validName reports whether s is a repository name: components of lower-case
// letters and digits, joined within by ".", "_", "__" or any number of "-".
func validName(s string) bool {
	if len(s) > maxName {
		return false
	}
	for component := range strings.SplitSeq(s, "/") {
		if !validComponent(component) {
			return false
		}
	}
	return true
}

func validComponent(s string) bool {
	if s == "" || !isAlnum(s[0]) || !isAlnum(s[len(s)-1]) {
		return false
	}
	for i := 0; i < len(s); {
		if isAlnum(s[i]) {
			i++
			continue
		}
		start := i
		for !isAlnum(s[i]) { // ends: the last byte is a letter or digit
			i++
		}
		switch sep := s[start:i]; {
		case sep == "." || sep == "_" || sep == "__":
		case strings.Trim(sep, "-") == "":
		default:
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// validTag reports whether s is a tag: letters, digits, "_", "." and "-", the
// first neither "." nor "-". A digest is none, because of its colon.
func validTag(s string) bool {
	if s == "" || len(s) > maxTag || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if !isAlnum(c) && (c < 'A' || c > 'Z') && c != '_' && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// cap80 shortens what a client sent for use in a message.
func cap80(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
