package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"graze/image/imagetest"
	"graze/image/soci/socitest"
	"graze/node"
)

// inspectJSON inspects images.
func inspectJSON(t *testing.T, args ...string) (list []inspected) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(graze(t, append([]string{"inspect", "--json"}, args...)...)))
	for dec.More() {
		var in inspected
		if err := dec.Decode(&in); err != nil {
			t.Fatal(err)
		}
		list = append(list, in)
	}
	return list
}

// TestInspect inspects an image that has three indexes, and one that shares its
// files and has none that could be used.
func TestInspect(t *testing.T) {
	reg := startRegistry(t)
	layers := []imagetest.Layer{imagetest.SmallFiles("files", 200)}
	build := func(e imagetest.Encoding) *imagetest.Image {
		img, err := imagetest.Build(layers, e)
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	img := build(imagetest.Gzip(6))
	ref := reg.push(t, img, "inspect:1")
	soci, err := socitest.Index(socitest.First, img, ztocsOf(t, img))
	if err != nil {
		t.Fatal(err)
	}
	reg.push(t, soci, "inspect:soci")
	state := t.TempDir()
	graze(t, "index", "--state", t.TempDir(), "--push", ref)
	es := reg.push(t, build(imagetest.EStargz("estargz")), "inspect:estargz")
	again := reg.push(t, build(imagetest.ZstdChunked()), "inspect:zstd")
	other := reg.push(t, edited(t, build(imagetest.StargzZstd()), func(m map[string]any) {
		m["layers"].([]any)[0].(map[string]any)["annotations"].(map[string]any)["io.containers.zstd-chunked.manifest-position"] = "100:1:1:1"
	}), "inspect:broken")

	list := inspectJSON(t, "--state", state, ref, es, again, other)
	if len(list) != 4 {
		t.Fatalf("%d images, not 4", len(list))
	}
	first := list[0].Layers[0].Indexes
	if len(first) != 2 || first[0].Format != "targz" || !first[0].Used || first[1].Format != "soci" || first[1].Used || first[1].Why == "" {
		t.Errorf("indexes %+v", first)
	}
	for i, in := range list[:3] {
		if p := in.Presence; p == nil || p.Chunks == 0 || p.Local.Chunks != 0 || in.Content.Chunks == 0 {
			t.Errorf("image %d: presence %+v, %+v", i, p, in.Content)
		}
	}
	// Both have most files as a chunk each; zstd:chunked cuts some by their content.
	if c := list[1].Shared; c[1].With != again || 2*c[1].Chunks < list[1].Content.Chunks {
		t.Errorf("eStargz has in common %+v", c)
	}
	last := list[3]
	if last.Presence != nil && last.Presence.Chunks > 0 || len(last.Layers[0].Indexes) != 1 || last.Layers[0].Indexes[0].Why == "" {
		t.Errorf("image whose index is broken: %+v, presence %+v", last.Layers, last.Presence)
	}
	text := graze(t, "inspect", "--state", state, ref, other)
	for _, want := range []string{"used", "not used", "unusable", "another one comes first", "can't be mounted"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestInspectPresence inspects an image that is mounted, before and after all of it
// was read.
func TestInspectPresence(t *testing.T) {
	needFUSE(t)
	reg := startRegistry(t)
	img, err := imagetest.Build([]imagetest.Layer{imagetest.SmallFiles("files", 50)}, imagetest.EStargz("estargz"))
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.push(t, img, "presence:1")
	state := t.TempDir()
	m := mount(t, ref, "--state", state, "--index", "require")
	before := inspectJSON(t, "--state", state, ref)[0].Presence
	snapshot(t, m.dir)
	after := inspectJSON(t, "--state", state, ref)[0].Presence
	if before.Local.Chunks != 0 || after.Local.Chunks != after.Chunks {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if !slices.Equal(after.Peers, []node.PeerPresence{}) {
		t.Errorf("peers %+v", after.Peers)
	}
}
