package image

// pageLen is how many values a page holds.
const pageLen = 1 << 13

// pages is a growing array. Other than a slice it never moves its values, so
// that it grows without needing the memory twice.
type pages[T any] struct {
	list []*[pageLen]T
	n    int
}

// len returns the number of values.
func (p *pages[T]) len() int { return p.n }

// at returns value number i, which stays where it is.
func (p *pages[T]) at(i uint32) *T { return &p.list[i/pageLen][i%pageLen] }

// add appends v and returns its number.
func (p *pages[T]) add(v T) uint32 {
	if p.n%pageLen == 0 {
		p.list = append(p.list, new([pageLen]T))
	}
	i := uint32(p.n)
	p.n++
	*p.at(i) = v
	return i
}
