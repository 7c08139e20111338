// Command ztoc writes the zTOC of a layer, by the library of the SOCI snapshotter.
//
//	ztoc LAYER ALGORITHM SPANSIZE >ZTOC
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/awslabs/soci-snapshotter/ztoc"
)

func run(layer, algorithm, spanSize string) error {
	size, err := strconv.ParseInt(spanSize, 10, 64)
	if err != nil {
		return err
	}
	z, err := ztoc.NewBuilder("graze's tests").BuildZtoc(layer, size, ztoc.WithCompression(algorithm))
	if err != nil {
		return err
	}
	r, _, err := ztoc.Marshal(z)
	if err != nil {
		return err
	}
	_, err = io.Copy(os.Stdout, r)
	return err
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: ztoc LAYER gzip|uncompressed SPANSIZE >ZTOC")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "ztoc:", err)
		os.Exit(1)
	}
}
