package origin

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseContentRange(t *testing.T) {
	tests := []struct {
		name, in string
		want     contentRange
		err      string
	}{
		{"whole", "bytes 0-499/500", contentRange{0, 499, 500}, ""},
		{"unknown total", "bytes 10-19/*", contentRange{10, 19, -1}, ""},
		{"upper case", "Bytes 1-1/2", contentRange{1, 1, 2}, ""},
		{"largest", "bytes 0-9223372036854775806/9223372036854775807", contentRange{0, 1<<63 - 2, 1<<63 - 1}, ""},
		{"none", "", contentRange{}, "no Content-Range"},
		{"other unit", "items 0-1/2", contentRange{}, "unit"},
		{"unsatisfied", "bytes */500", contentRange{}, "no range"},
		{"no total", "bytes 0-1", contentRange{}, "no total"},
		{"last before first", "bytes 5-4/10", contentRange{}, "out of order"},
		{"beyond the total", "bytes 0-10/10", contentRange{}, "out of order"},
		{"sign", "bytes +1-2/3", contentRange{}, "first byte"},
		{"too large", "bytes 0-9223372036854775808/*", contentRange{}, "last byte"},
		{"bad total", "bytes 0-1/x", contentRange{}, "total is no number"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseContentRange(tt.in)
			checkError(t, err, tt.err)
			if got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// checkError fails unless err contains want, or is nil if want is empty.
func checkError(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("error %v", err)
	case want != "" && err == nil:
		t.Errorf("no error, want %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("error %q, want %q", err, want)
	}
}

func FuzzParseContentRange(f *testing.F) {
	f.Add("bytes 0-499/500")
	f.Add("bytes 10-19/*")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseContentRange(s)
		if err == nil && (r.first < 0 || r.last < r.first || r.total >= 0 && r.last >= r.total) {
			t.Errorf("%q: %v", s, r)
		}
	})
}

func TestParseChallenges(t *testing.T) {
	type params = map[string]string
	tests := []struct {
		name, in string
		want     []challenge
	}{
		{"empty", "", nil},
		{"basic", `Basic realm="r"`, []challenge{{"basic", params{"realm": "r"}}}},
		{"bearer", `Bearer realm="https://a.test/t",service="s",scope="repository:a/b:pull,push"`,
			[]challenge{{"bearer", params{"realm": "https://a.test/t", "service": "s", "scope": "repository:a/b:pull,push"}}}},
		{"several", `Negotiate, Basic realm="x", Bearer realm=y , a=b`,
			[]challenge{{"negotiate", params{}}, {"basic", params{"realm": "x"}}, {"bearer", params{"realm": "y", "a": "b"}}}},
		{"quoted pair", `Basic realm="a\"b\\c"`, []challenge{{"basic", params{"realm": `a"b\c`}}}},
		{"space around", `Basic  realm = "x"`, []challenge{{"basic", params{"realm": "x"}}}},
		{"upper case", `BASIC REALM="X"`, []challenge{{"basic", params{"realm": "X"}}}},
		{"open quote", `Bearer a=b, realm="x`, []challenge{{"bearer", params{"a": "b"}}}},
		{"parameter without scheme", `="x"`, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parseChallenges(tt.in), cmp.AllowUnexported(challenge{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzParseChallenges(f *testing.F) {
	f.Add(`Bearer realm="https://a.test/t",service="s",scope="repository:a/b:pull,push"`)
	f.Add(`Negotiate, Basic realm="x\"", Bearer realm=y , a=b`)
	f.Fuzz(func(t *testing.T, s string) {
		all := parseChallenges(s)
		if len(all) > maxChallenges+1 {
			t.Errorf("%d challenges", len(all))
		}
		for _, c := range all {
			if c.scheme == "" || c.scheme != strings.ToLower(c.scheme) || len(c.params) > maxChallenges {
				t.Errorf("%q: %+v", s, c)
			}
		}
		pickChallenge(http.Header{"Www-Authenticate": {s}})
	})
}

func TestTargetExpiry(t *testing.T) {
	tests := []struct {
		name, query string
		want        time.Duration
	}{
		{"nothing said", "", maxTargetLife - targetSlack},
		{"S3", "X-Amz-Date=20260304T050607Z&X-Amz-Expires=300", 270 * time.Second},
		{"S3, signed before", "X-Amz-Date=20260304T050507Z&X-Amz-Expires=300", 210 * time.Second},
		{"S3, expired", "X-Amz-Date=20260304T040000Z&X-Amz-Expires=300", -3667 * time.Second},
		{"S3, by a clock ahead", "X-Amz-Date=20260304T060000Z&X-Amz-Expires=60", 45 * time.Second},
		{"S3, long", "X-Amz-Date=20260304T050607Z&X-Amz-Expires=86400", maxTargetLife - targetSlack},
		{"S3, absurd", "X-Amz-Expires=99999999999999999999", maxTargetLife - targetSlack},
		{"GCS", "X-Goog-Date=20260304T050607Z&X-Goog-Expires=100", 75 * time.Second},
		{"CloudFront", "Expires=1772600827", 45 * time.Second},
		{"Azure", "se=2026-03-04T05%3A10%3A07Z", 210 * time.Second},
		{"nonsense", "Expires=x&se=y&X-Amz-Expires=-1", maxTargetLife - targetSlack},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u := &url.URL{Scheme: "https", Host: "store.test", RawQuery: tt.query}
			if got := targetExpiry(u, t0).Sub(t0); got != tt.want {
				t.Errorf("usable for %v, want %v", got, tt.want)
			}
		})
	}
}

func TestNextPage(t *testing.T) {
	at := &url.URL{Scheme: "https", Host: "r.test", Path: "/v2/a/referrers/x"}
	tests := []struct {
		name, link, want, err string
	}{
		{"none", "", "", ""},
		{"relative", `</v2/a/referrers/x?next=1>; rel="next"`, "https://r.test/v2/a/referrers/x?next=1", ""},
		{"no quotes", `<?n=2>;rel=next`, "https://r.test/v2/a/referrers/x?n=2", ""},
		{"second of two", `<?n=1>; rel="prev", <?n=2>; rel="next"`, "https://r.test/v2/a/referrers/x?n=2", ""},
		{"other relation", `<?n=1>; rel="prev"`, "", ""},
		{"other host", `<https://evil.test/>; rel="next"`, "", "same host"},
		{"broken", `<?n=1; rel="next"`, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := nextPage([]string{tt.link}, at)
			checkError(t, err, tt.err)
			got := ""
			if u != nil {
				got = u.String()
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseReference(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	tests := []struct {
		name, in, want, err string
	}{
		{"name", "alpine", "docker.io/library/alpine:latest", ""},
		{"tag", "alpine:3.20", "docker.io/library/alpine:3.20", ""},
		{"user", "me/app", "docker.io/me/app:latest", ""},
		{"docker.io", "docker.io/library/alpine", "docker.io/library/alpine:latest", ""},
		{"old name of docker.io", "index.docker.io/library/alpine", "docker.io/library/alpine:latest", ""},
		{"host", "r.test/a/b/c:1", "r.test/a/b/c:1", ""},
		{"port", "localhost:5000/a", "localhost:5000/a:latest", ""},
		{"localhost", "localhost/a", "localhost/a:latest", ""},
		{"digest", "r.test/a@" + digest, "r.test/a@" + digest, ""},
		{"tag and digest", "r.test/a:1@" + digest, "r.test/a@" + digest, ""},
		{"empty", "", "", "not valid"},
		{"upper case", "r.test/App", "", "not valid"},
		{"short digest", "r.test/a@sha256:abcd", "", "not valid"},
		{"space", "r.test/a b", "", "not valid"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ref, err := parseReference(tt.in)
			checkError(t, err, tt.err)
			if err == nil && ref.String() != tt.want {
				t.Errorf("got %s, want %s", ref, tt.want)
			}
		})
	}
}

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1:80": true, "127.9.9.9": true, "[::1]:5000": true,
		"r.test": false, "10.0.0.1:5000": false, "localhost.test": false, "[::2]:1": false,
	} {
		if got := isLoopback(host); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
}
