// Package graze holds no code: its tests keep rules that span the whole
// repository, such as which package may import which.
package graze
