package dht

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLastViewFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "view.json")
	members := crowd(30)
	for i := range members {
		members[i].Gossip = "10.0.0.1:7946"
	}
	for range 2 { // also over the file that is there
		if err := writeLastView(path, viewOf(members)); err != nil {
			t.Fatal(err)
		}
	}
	got, saved, err := readLastView(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(members[1:], got); diff != "" {
		t.Error(diff)
	}
	if age := time.Since(saved); age < 0 || age > time.Hour {
		t.Errorf("saved %v ago", age)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("the directory has %v, err %v", files, err)
	}
	if got, _, err := readLastView(filepath.Join(dir, "none")); err != nil || got != nil {
		t.Errorf("no file gives %v, %v", got, err)
	}
	if err := writeLastView(filepath.Join(dir, "none", "view"), viewOf(members)); err == nil {
		t.Error("a view was written to a directory that is not there")
	}
}

func TestDecodeLastView(t *testing.T) {
	const good = `{"id":"a","gossip":"10.0.0.1:1","metadata":"AQ=="}`
	for _, tt := range []struct {
		name, p, err string
		members      int
	}{
		{"one member", `{"version":1,"members":[` + good + `]}`, "", 1},
		{"bad members are left out", `{"version":1,"members":[{"id":"","gossip":"10.0.0.1:1","metadata":"AQ=="},{"id":"b","gossip":"x","metadata":"AQ=="},` +
			`{"id":"c","gossip":"10.0.0.1:1","metadata":"Ag=="},` + good + `]}`, "", 1},
		{"too many members", `{"version":1,"members":[` + strings.Repeat(good+",", MaxMembers) + good + `]}`, "", MaxMembers},
		{"empty", "", "last view f: ", 0},
		{"cut", `{"version":1,"members":[`, "last view f: ", 0},
		{"other version", `{"version":2}`, "version 2, not 1", 0},
		{"too large", strings.Repeat(" ", maxLastView+1), "more than", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			members, _, err := decodeLastView("f", []byte(tt.p))
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) || len(members) != tt.members {
				t.Errorf("%d members, err %v; want %d, %q", len(members), err, tt.members, tt.err)
			}
		})
	}
}

func FuzzLastView(f *testing.F) {
	f.Add([]byte(`{"version":1,"saved":"2026-01-02T03:04:05Z","members":[{"id":"a","gossip":"10.0.0.1:1","metadata":"AQ=="}]}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		members, _, err := decodeLastView("fuzz", p)
		if err != nil && members != nil {
			t.Error("members with an error")
		}
		for i := range members {
			m := &members[i]
			if checkID(string(m.ID)) != nil || checkHostPort("", m.Gossip) != nil {
				t.Fatalf("member %+v was accepted", m)
			}
			meta, err := encodeMetadata(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := json.Marshal(lastMember{string(m.ID), m.Gossip, bytes.Clone(meta)}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
