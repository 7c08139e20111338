package origin

import (
	"net/http"
	"strings"
)

// A challenge is one way of authorization that a WWW-Authenticate header offers.
type challenge struct {
	scheme string            // lower case: "bearer", "basic"
	params map[string]string // by lower-case name
}

// pickChallenge returns the offer of an answer that this client can take,
// bearer before basic.
func pickChallenge(h http.Header) (challenge, bool) {
	var basic *challenge
	for _, v := range h.Values("WWW-Authenticate") {
		for _, c := range parseChallenges(v) {
			if c.scheme == "bearer" && c.params["realm"] != "" {
				return c, true
			}
			if c.scheme == "basic" && basic == nil {
				basic = &c
			}
		}
	}
	if basic != nil {
		return *basic, true
	}
	return challenge{}, false
}

// maxChallenges bounds what is parsed of one header.
const maxChallenges = 16

// parseChallenges parses a WWW-Authenticate header (RFC 9110, 11.6.1): schemes,
// each with parameters, all separated by commas. It stops at what it does not
// understand.
func parseChallenges(s string) []challenge {
	var all []challenge
	for len(all) <= maxChallenges {
		s = strings.TrimLeft(s, " \t,")
		word := token(s)
		if word == "" {
			return all
		}
		rest := strings.TrimLeft(s[len(word):], " \t")
		if len(all) > 0 && strings.HasPrefix(rest, "=") {
			value, after, ok := paramValue(strings.TrimLeft(rest[1:], " \t"))
			if !ok {
				return all
			}
			params := all[len(all)-1].params
			if name := strings.ToLower(word); len(params) < maxChallenges {
				params[name] = value
			}
			s = after
			continue
		}
		all = append(all, challenge{strings.ToLower(word), make(map[string]string)})
		s = rest
	}
	return all
}

// paramValue cuts a token or a quoted string off s.
func paramValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		value = token(s)
		return value, s[len(value):], value != ""
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

// token returns the longest token (RFC 9110, 5.6.2) at the beginning of s, in
// which it accepts the characters of unquoted URLs and base64 too.
func token(s string) string {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || strings.IndexByte(`",=`, s[i]) >= 0 {
			return s[:i]
		}
	}
	return s
}
