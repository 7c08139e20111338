package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a flag for a number of bytes: "20GiB", "500M" or "1048576".
type byteSize int64

// units are the binary multiples that byteSize knows, by their first letter.
const units = "KMGT"

// String implements pflag.Value.
func (b *byteSize) String() string {
	if *b == 0 {
		return ""
	}
	return size(int64(*b))
}

// Type implements pflag.Value.
func (b *byteSize) Type() string { return "bytes" }

// Set implements pflag.Value.
func (b *byteSize) Set(s string) error {
	number := strings.TrimSuffix(strings.ToUpper(s), "B")
	number = strings.TrimSuffix(number, "I")
	shift := 0
	if n := len(number); n > 0 {
		if i := strings.IndexByte(units, number[n-1]); i >= 0 {
			shift = 10 * (i + 1)
			number = number[:n-1]
		}
	}
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(v > 0) || v*math.Pow(2, float64(shift)) > math.MaxInt64/2 {
		return fmt.Errorf("%q is no size: write a number of bytes, or one with KiB, MiB, GiB or TiB", s)
	}
	*b = byteSize(v * math.Pow(2, float64(shift)))
	return nil
}

// size prints a number of bytes for a person.
func size(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/(1<<10), 0
	for f >= 1<<10 && unit < len(units)-1 {
		f /= 1 << 10
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", f, units[unit])
}
