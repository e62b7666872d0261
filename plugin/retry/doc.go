// Package retry repeats writes that the API server refuses because another client came between.
package retry
