package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"graze/scheduler"
)

// twoImages runs f with a cluster of 12 nodes in 3 racks, one of which has read an
// image, and another image with the same chunks, and some more, in other places.
func twoImages(t *testing.T, f func(t *testing.T, c *Cluster, first, second *Image)) {
	t.Helper()
	t.Logf("seed %d", *seed)
	first := NewImage(*seed, Shape{Bytes: *scale * 8 << 20, Chunk: 64 << 10, Chunks: 4})
	second := first.Remix(*seed+77, 12, 5)
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{
			Seed: *seed, Nodes: 12, Racks: 3, Image: first, Up: nodeRate, Down: nodeRate, Origin: nodeRate,
			Scheduler: scheduler.Config{Readahead: -1},
		})
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		readAll(t, c, c.Nodes[:1], true)
		time.Sleep(5 * time.Second)
		f(t, c, first, second)
	})
}

// readSecond has nodes read the second image, and returns what the registry has
// given of it beyond the spans that have something new.
func readSecond(t *testing.T, c *Cluster, nodes []*Node, first, second *Image) (extra int64) {
	t.Helper()
	before := c.Traffic().Origin
	c.Show(second)
	d := readAll(t, c, nodes, true)
	got, fresh := c.Traffic().Origin-before, second.NewTo(first)
	t.Logf("the second image has %d bytes, %d of them in spans with something new; the registry gave %d in %v", second.Size(), fresh, got, d)
	return got - fresh
}

// What two images have in common costs the registry nothing the second time.
func TestCommonChunks(t *testing.T) {
	twoImages(t, func(t *testing.T, c *Cluster, first, second *Image) {
		if extra := readSecond(t, c, c.Nodes, first, second); extra > 0 {
			t.Errorf("that is %d more", extra)
		}
	})
}

// It costs nothing either when nodes have gone for good, and others have come anew
// or have started again.
func TestCommonChunksAfterChanges(t *testing.T) {
	twoImages(t, func(t *testing.T, c *Cluster, first, second *Image) {
		gone, back := c.Nodes[3], c.Nodes[7]
		gone.Kill()
		left := append(append([]*Node(nil), c.Nodes[:3]...), c.Nodes[4:]...)
		for _, n := range left {
			n.See(left)
		}
		back.Kill()
		if err := back.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		if extra := readSecond(t, c, left, first, second); extra > 0 {
			t.Errorf("that is %d more", extra)
		}
	})
}

// Nodes that claim to have what they don't have cost others little.
func TestFalseHints(t *testing.T) {
	twoImages(t, func(t *testing.T, c *Cluster, first, second *Image) {
		liar := c.Nodes[5]
		liar.Wipe() // it has told all of its chunks
		extra := readSecond(t, c, c.Nodes, first, second)
		// Of most of what the liar was said to have, another rack has a copy.
		if extra > first.Size()/20 {
			t.Errorf("that is %d more", extra)
		}
	})
}

// A node that becomes home of what others have been home of finds out who has it.
func TestNewHomes(t *testing.T) {
	twoImages(t, func(t *testing.T, c *Cluster, first, _ *Image) {
		c.Nodes[1].Kill() // of another rack than the one that has read the image
		left := append(append([]*Node(nil), c.Nodes[0]), c.Nodes[2:]...)
		for _, n := range left {
			n.See(left)
		}
		before := c.Traffic().Origin
		readAll(t, c, left, true)
		if n := c.Traffic().Origin - before; n > 0 {
			t.Errorf("the registry gave %d bytes again", n)
		}
	})
}

// To ask for chunks that nobody has takes the start of a first image no time that
// could be told.
func TestDirectoryTakesNoTime(t *testing.T) {
	first := NewImage(*seed, Shape{Bytes: *scale * 8 << 20, Chunk: 64 << 10, Chunks: 4})
	start := func(blind bool) (d time.Duration, told int) {
		synctest.Test(t, func(t *testing.T) {
			c := New(Config{
				Seed: *seed, Nodes: *nodes, Racks: 2, Image: first, Up: nodeRate, Down: nodeRate, Origin: nodeRate,
				Scheduler: scheduler.Config{Readahead: -1}, Blind: blind,
			})
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			d = readAll(t, c, c.Nodes, false)
			time.Sleep(5 * time.Second)
			told = c.Traffic().Told
		})
		return d, told
	}
	without, _ := start(true)
	with, told := start(false)
	t.Logf("seed %d: %v with a directory, %v without; nodes have told each other %d times", *seed, with, without, told)
	if with > without*6/5 {
		t.Errorf("it took %v, and without a directory %v", with, without)
	}
}
