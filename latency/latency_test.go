package latency

import (
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var r Recorder
	for i := 1; i <= 1000; i++ {
		r.Add(time.Duration(i) * time.Millisecond)
	}
	r.Add(-time.Second)
	r.Add(1000 * time.Hour)
	h := r.Snapshot()
	if h.Count != 1002 {
		t.Errorf("count %d", h.Count)
	}
	for _, row := range []struct {
		q    float64
		want time.Duration
	}{
		{0, time.Microsecond}, {0.1, 100 * time.Millisecond}, {0.5, 500 * time.Millisecond},
		{0.99, 990 * time.Millisecond}, {0.998, 999 * time.Millisecond},
	} {
		if got := h.Quantile(row.q); got < row.want || got > row.want*5/4 {
			t.Errorf("quantile %v is %v, want %v to a quarter more", row.q, got, row.want)
		}
	}
	if got := h.Quantile(1); got < time.Hour {
		t.Errorf("the longest of all is %v", got)
	}
	if got := new(Histogram).Quantile(0.5); got != 0 {
		t.Errorf("the quantile of nothing is %v", got)
	}
}

func TestBuckets(t *testing.T) {
	for i := range numBuckets - 1 {
		if got := bucketOf(bound(i)); got != i || bound(i+1) <= bound(i) {
			t.Errorf("the bound of bucket %d falls into bucket %d", i, got)
		}
		if i > subBuckets && bound(i+1)*4 > bound(i)*5 {
			t.Errorf("bucket %d goes from %v to %v", i, bound(i), bound(i+1))
		}
	}
	if got := bucketOf(1 << 62); got != numBuckets-1 {
		t.Errorf("a very long time is in bucket %d", got)
	}
	var h Histogram
	for i := range 1000 {
		h.Add(time.Duration(i*i) * time.Microsecond)
	}
	n, last := int64(0), time.Duration(-1)
	for upper, count := range h.Buckets {
		if upper <= last {
			t.Errorf("bucket %v after %v", upper, last)
		}
		last = upper
		n += count
	}
	if n != h.Count || n != 1000 {
		t.Errorf("the buckets hold %d of %d", n, h.Count)
	}
}

func TestHalve(t *testing.T) {
	var h Histogram
	for range 100 {
		h.Add(time.Second)
	}
	h.Halve()
	if h.Count != 50 || h.Sum != 50*time.Second {
		t.Errorf("half of 100 seconds are %d of %v in all", h.Count, h.Sum)
	}
	for range 60 {
		h.Add(time.Millisecond)
	}
	if got := h.Quantile(0.5); got > 2*time.Millisecond {
		t.Errorf("the median is still %v", got)
	}
}
