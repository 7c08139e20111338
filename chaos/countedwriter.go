package chaos

import "net/http"

// A CountedWriter counts what is answered to one request.
type CountedWriter struct {
	http.ResponseWriter
	Status int   // 0 before the answer has begun
	Bytes  int64 // of the body
}

// WriteHeader implements http.ResponseWriter.
func (w *CountedWriter) WriteHeader(status int) {
	if w.Status == 0 {
		w.Status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *CountedWriter) Write(p []byte) (int, error) {
	if w.Status == 0 {
		w.Status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.Bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *CountedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
