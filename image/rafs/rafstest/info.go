package rafstest

const infoMagic = 0xb10bb10b

// info returns the chunk information of a blob, and its header as far as it is
// known by now.
func (o *blob) info() (raw, header []byte) {
	for _, p := range o.pieces {
		if o.features&featureInfoV2 != 0 {
			raw = o.appendInfoV2(raw, p)
		} else {
			raw = appendInfoV1(raw, p)
		}
	}
	header = make([]byte, 4096)
	rows, n := o.contexts()
	if n > 0 {
		le.PutUint64(header[40:], uint64(len(raw)))
		le.PutUint64(header[48:], uint64(len(rows)))
		le.PutUint32(header[56:], uint32(n))
		raw = append(raw, rows...)
	}
	return raw, header
}

func appendInfoV1(raw []byte, p *piece) []byte {
	usize, csize := uint64(p.usize-1), uint64(p.csize-1)
	raw = le.AppendUint64(raw, usize<<44|usize>>12&0xf00|uint64(p.uoff))
	return le.AppendUint64(raw, csize<<44|csize&0xf00000<<20|uint64(p.coff))
}

func (o *blob) appendInfoV2(raw []byte, p *piece) []byte {
	flags, csize, data := uint64(0), uint64(p.csize), uint64(0)
	if p.compressed {
		flags |= 1
	}
	if p.context >= 0 {
		flags |= 4
		if o.zran != nil {
			flags = 1 | 2
		} else {
			csize = 0
		}
		data = uint64(p.context)<<32 | uint64(p.at)
	}
	raw = le.AppendUint64(raw, flags<<56|uint64(p.usize-1)<<32|uint64(p.uoff)>>12)
	raw = le.AppendUint64(raw, csize<<40|uint64(p.coff))
	return le.AppendUint64(raw, data)
}

// contexts returns the rows of batches or of contexts, with the windows of the
// latter behind them, and how many rows there are.
func (o *blob) contexts() (p []byte, n int) {
	for _, b := range o.batches {
		p = le.AppendUint32(p, uint32(b[0]))
		p = le.AppendUint32(p, uint32(b[1]))
		p = append(p, make([]byte, 32)...)
	}
	dict := 0
	for _, z := range o.zran {
		p = le.AppendUint64(p, uint64(z.inOff))
		p = le.AppendUint64(p, uint64(z.outOff))
		p = le.AppendUint64(p, uint64(dict))
		p = le.AppendUint32(p, uint32(z.inLen))
		p = le.AppendUint32(p, uint32(z.outLen))
		p = le.AppendUint32(p, uint32(len(z.dict)))
		p = append(p, z.ctxByte, z.bits, 0, 0)
		dict += len(z.dict)
	}
	for _, z := range o.zran {
		p = append(p, z.dict...)
	}
	return p, len(o.batches) + len(o.zran)
}

// fillHeader completes the header of the chunk information.
func (o *blob) fillHeader(p []byte, c Compressor) {
	le.PutUint32(p, infoMagic)
	le.PutUint32(p[4:], o.features)
	le.PutUint32(p[8:], uint32(c))
	le.PutUint32(p[12:], uint32(len(o.pieces)))
	le.PutUint64(p[16:], uint64(o.infoOff))
	le.PutUint64(p[24:], uint64(o.infoCSize))
	le.PutUint64(p[32:], uint64(o.infoSize))
	le.PutUint32(p[4092:], infoMagic)
}
